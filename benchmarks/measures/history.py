"""Reads of a long history: first pages with every filter and combinations, pages far back, and the figures of a day."""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import combinations
from statistics import median, quantiles
from typing import Any

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.fleets import DATABASES, Database
from benchmarks.long_history import LongHistory
from benchmarks.pairs import by_turns
from benchmarks.scene import Scene
from forge_tools.errors import StorageError
from forge_tools.model import Grouping
from forge_tools.storage import Store, open_store
from forge_tools.storage.connection.drivers import STATEMENT_SECONDS
from forge_tools.storage.history.rollups import hour_at

TIMES = 3
PAGE = 50
BACK = 1_000
"""So many pages back; fewer where history is short."""

COMPARED, TURNS = 10, 5
"""Pages at either end of the way back, and how often each of them is read again, in turns."""

PAIRS, TRIPLES = 90, 60
"""Combinations of two and of three filters, drawn from all that there are, the same ones in every run."""

LEASE, BEAT = 15.0, 15.0
LIMIT_MS = 50
PATIENCE_SECONDS = 0.02
"""After so long a page says how far it has looked, and a next one goes on from there."""

Filters = Mapping[str, Any]
Read = Callable[..., Awaitable[Sequence[Any]]]


def pages(database: Database, scene: Scene) -> Readings:
    """Read first pages, each several times; slow ones are reported on the error stream with their first reading."""
    return asyncio.run(_pages(scene, database))


async def _pages(scene: Scene, database: Database) -> Readings:
    assert scene.long is not None
    async with await open_store(scene.past[database].database_url) as store:
        await store.history.list()
        first = await _first_pages(store, scene.long, database)
        back = await _way_back(store, scene.long)
    return {**first, **back}


async def _first_pages(store: Store, long: LongHistory, database: Database) -> Readings:
    took: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for name, read, filters in _reads(store, long):
        asked = f"{name} {' '.join(f'{key}={value}' for key, value in filters.items())}"
        try:
            took[asked] = [await _milliseconds(partial(read, **filters)) for _ in range(TIMES)]
        except StorageError as error:  # the server ends what takes too long
            failed[asked] = error.message
            took[asked] = [STATEMENT_SECONDS * 1000]
    slow = {asked: times for asked, times in took.items() if median(times) > LIMIT_MS}
    for asked, times in sorted(slow.items(), key=lambda item: -median(item[1])):
        print(f"{database}: {median(times):8,.0f} ms  {asked}  {failed.get(asked, '')}", file=sys.stderr)
    middles = [median(times) for times in took.values()]
    every = [one for times in took.values() for one in times]
    return {
        "p95": quantiles(every, n=20)[-1],
        "p50": median(every),
        "worst": max(middles),
        "slow": len(slow),
        "combinations": len(took),
        "failed": len(failed),
    }


def _reads(store: Store, long: LongHistory) -> Iterator[tuple[str, Read, Filters]]:
    values = _values(long)
    for filters in _combinations(values):
        yield "executions", partial(store.history.list, patience=PATIENCE_SECONDS), filters
    for filters in _combinations({name: values[name] for name in values}, pairs=PAIRS // 3, triples=0):
        if filters.get("status") not in ("queued", "running"):
            yield "attempts", partial(store.history.list_attempts, patience=PATIENCE_SECONDS), filters
    kinds = {"kind": ["requeued", "lost", "none"]}
    for filters in _combinations(kinds | {name: values[name] for name in values}, pairs=PAIRS // 3, triples=0):
        yield "events", partial(store.history.list_events, patience=PATIENCE_SECONDS), filters


def _values(long: LongHistory) -> dict[str, list[Any]]:
    """Every filter, with a frequent, a rare and an absent value."""
    late, early = long.moment(long.total - long.small // 10), long.moment(long.total - long.small // 2)
    return {
        "tool": ["Grep", "Rare", "None"],
        "category": ["file", "mcp", "notebook"],
        "agent_id": ["agent-7", "nobody"],
        "session_id": [f"session-{(long.total - long.small // 3) // PAGE}", "none"],
        "status": [
            *("succeeded", "failed", "timed_out", "rejected", "lost"),
            *("expired", "cancelled", "queued", "running"),
        ],
        "queue": ["default", "host.build-7", "nowhere"],
        "error_code": ["EXECUTION_ERROR", "TIMEOUT", "LOST", "NONE"],
        "error_text": ["timed out", "/dev/sd3", "no such words"],
        "min_ms": [1_000, 6_500, 60_000],
        "max_ms": [1_000, 5, 0],
        "since": [late, long.newest + timedelta(hours=1)],
        "until": [early, long.moment(1)],
    }


def _combinations(values: Mapping[str, Sequence[Any]], pairs: int = PAIRS, triples: int = TRIPLES) -> Iterator[Filters]:
    yield {}
    for name, some in values.items():
        yield from ({name: value} for value in some)
    drawn = random.Random(7)
    for size, count in ((2, pairs), (3, triples)):
        for names in drawn.choices(list(combinations(values, size)), k=count):
            yield {name: drawn.choice(values[name]) for name in names}


async def _way_back(store: Store, long: LongHistory) -> Readings:
    """Page after page behind the last id of the one before; `page` is the last one as `forge-tools history --before` reads it."""
    pages = min(BACK, long.small // PAGE // 2)
    ratios, shown = [], 0.0
    walks: Sequence[Filters] = ({}, {"tool": "Grep"}, {"status": "succeeded", "category": "file"})
    for filters in walks:
        cursors: list[str] = []
        for _ in range(min(pages, long.small // PAGE // 10) if filters else pages):
            page = await store.history.list(before=cursors[-1] if cursors else None, limit=PAGE, **filters)
            cursors.append(page[-1].id)
        works = {
            "near": partial(_read_some, store, [None, *cursors[: COMPARED - 1]], filters),
            "far": partial(_read_some, store, cursors[-COMPARED - 1 : -1], filters),
        }
        took = await by_turns(works, TURNS)
        ratios.append(took["far"] / took["near"])
        if not filters:
            ends = {name: milliseconds / COMPARED for name, milliseconds in took.items()}
            shown = median([await _milliseconds(partial(_cli_page, store, cursors[-2])) for _ in range(COMPARED)])
    return ends | {"back": max(ratios), "shown": shown}


async def _read_some(store: Store, cursors: Sequence[str | None], filters: Filters) -> None:
    for before in cursors:
        await store.history.list(before=before, limit=PAGE, **filters)


async def _cli_page(store: Store, before: str) -> None:
    last = await store.history.get(before)
    await store.history.list(before=last.id, limit=PAGE)


def figures(database: Database, scene: Scene) -> Readings:
    """Read everything that `forge-tools stats --since 1d` reads, with each grouping."""
    return asyncio.run(_figures(scene, database))


async def _figures(scene: Scene, database: Database) -> Readings:
    assert scene.long is not None
    since = scene.long.newest - timedelta(days=1)
    async with await open_store(scene.past[database].database_url) as store:
        by = {}
        for grouping in Grouping:
            read = partial(_stats, store, grouping, since)
            by[grouping.value] = median([await _milliseconds(read) for _ in range(TIMES)])
        others: dict[str, Callable[[], Awaitable[object]]] = {
            "rows": partial(store.history.figures, since=since, from_rows=True),
            "all": store.history.figures,
            "hour": partial(store.rollups.roll, hour_at(since)),
        }
        took = {name: median([await _milliseconds(read) for _ in range(TIMES)]) for name, read in others.items()}
    return by | took | {"slowest": max(by.values())}


async def _stats(store: Store, by: Grouping, since: Any) -> None:
    await store.history.figures(by, since=since)
    await store.overviews.read(window=1.0, lease=LEASE, patience=BEAT)


async def _milliseconds(read: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await read()
    return (time.perf_counter() - started) * 1000


SHOWN: Mapping[Database, tuple[str, str]] = {
    "postgres": ("PostgreSQL", "{history:,}"),
    "sqlite": ("SQLite", "{small_history:,}"),
}


def _page_rows(database: Database) -> Iterator[Row]:
    name, rows = SHOWN[database]
    yield Row(
        title=f"{name}, {rows} rows: first page by one, two or three filters, p95",
        unit="ms",
        key="p95",
        ours=database,
        bar=Bar("value", "at most", LIMIT_MS),
    )
    for what, unit, key in (
        ("p50", "ms", "p50"),
        ("by the slowest combination", "ms", "worst"),
        (f"combinations slower than {LIMIT_MS} ms", "", "slow"),
        ("combinations in all", "", "combinations"),
    ):
        yield Row(title=f"{name}, {rows} rows: first page, {what}", unit=unit, key=key, ours=database)
    yield Row(
        title=f"{name}, {rows} rows: first pages that end in an error",
        unit="",
        key="failed",
        ours=database,
        bar=Bar("value", "at most", 0),
    )
    yield Row(
        title=f"{name}: page {BACK:,} (page 1)", unit="ms", key="far", ours=database, raw=database, raw_key="near"
    )
    yield Row(
        title=f"{name}: page {BACK:,} as a part of page 1, the worst of three walks",
        unit="x",
        key="back",
        ours=database,
        bar=Bar("value", "at most", 1.15),
    )
    yield Row(title=f"{name}: page {BACK:,} as the command reads it", unit="ms", key="shown", ours=database)


def _figure_rows(database: Database) -> Iterator[Row]:
    name, rows = SHOWN[database]
    yield Row(
        title=f"{name}, {rows} rows: stats of a day, by the slowest grouping",
        unit="ms",
        key="slowest",
        ours=database,
        bar=Bar("value", "at most", 500),
    )
    for grouping in Grouping:
        yield Row(title=f"{name}: stats of a day by {grouping.value}", unit="ms", key=grouping.value, ours=database)
    for title, key in (
        ("the same by tool, without roll-ups", "rows"),
        ("stats of all the history by tool", "all"),
        ("to roll up an hour, 13,846 calls", "hour"),
    ):
        yield Row(title=f"{name}: {title}", unit="ms", key=key, ours=database)


PAGES, FIGURES = (
    Measure(
        name=name,
        needs=frozenset({"servers", "history"}),
        rounds_at_most=1,
        sides={database: partial(side, database) for database in DATABASES},
        rows=[row for database in ("postgres", "sqlite") for row in rows(database)],
    )
    for name, side, rows in (("history-pages", pages, _page_rows), ("history-figures", figures, _figure_rows))
)
