"""Reads of a long history: first pages by every filter, pages far back, figures of a day, an export."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from statistics import quantiles
from typing import Any

from benchmarks.apart import apart
from benchmarks.counters import in_database
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.processes import resident_megabytes
from benchmarks.scene import Scene
from forge_tools.storage import Store, open_store

STEP_MS = 260
"""Between two calls of the history: ten million of them are a month."""
TIMES = 5
EXPORTED = 10
"""The part of the history that is exported: one in so many."""

# What agents ask for in bursts: eight tools of which one is rare, 200 agents, 50 calls a session, one failure in 150.
ID = """
(lpad(to_hex($1::bigint - ($2::bigint - n) * $3::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
  || substr(md5(n::text), 4, 15))::uuid
"""
QUEUED = "to_timestamp(($1::bigint - ($2::bigint - n) * $3::bigint) / 1000.0)"
ASKED = f"""
INSERT INTO executions SELECT {ID},
  CASE WHEN n % 10000 = 0 THEN 'Rare' ELSE
    (ARRAY['Grep', 'Read', 'Bash', 'Edit', 'Glob', 'Fetch', 'Write'])[1 + (hashint4(n) & 1023) % 7] END,
  'Grep@1', '1.0.0', 'd1', (ARRAY['file', 'execution', 'web'])[1 + (hashint4(n + 7) & 1023) % 3],
  json_build_object('pattern', 'TODO ' || n, 'path', 'src/' || n % 1000), NULL, '{{"working_dir":"."}}', '{{}}',
  'agent-' || (hashint4(n + 1) & 65535) % 200, 'session-' || n / 50,
  CASE WHEN n % 5 = 0 THEN 'background' ELSE 'default' END, 'async', 120, 'default', 125, 127, 3, true, 0, 600, NULL, {QUEUED}
FROM generate_series(1, $2::int) n
"""
CAME_OF_IT = f"""
INSERT INTO execution_attempts SELECT {ID}, 1, true,
  CASE WHEN n % 200 = 0 THEN 'failed' WHEN n % 1000 = 1 THEN 'timed_out' WHEN n % 50000 = 7 THEN 'lost' ELSE 'succeeded' END,
  NULL, 'boot', 'host', 1, {QUEUED} + interval '0.1 s', {QUEUED} + interval '0.2 s', (hashint4(n + 3) & 65535) / 10.0,
  to_json('what the tool put out, a line or two: ' || repeat('x', 100)),
  CASE WHEN n % 200 = 0 THEN 'Disk full on /dev/sd' || n % 7 WHEN n % 1000 = 1 THEN 'Tool timed out after 5s' END,
  CASE WHEN n % 200 = 0 THEN 'EXECUTION_ERROR' WHEN n % 1000 = 1 THEN 'TIMEOUT' END, NULL, '{{}}'
FROM generate_series(1, $2::int) n
"""


def ours(scene: Scene) -> Readings:
    with apart(scene, "history") as settings:
        newest = time.time()
        in_database(settings.database_url, lambda connection: _fill(connection, newest, scene.sizes.history))
        return asyncio.run(_ours(settings.database_url, datetime.fromtimestamp(newest).astimezone(), scene))


async def _fill(connection: Any, newest: float, rows: int) -> None:
    for statement in (ASKED, CAME_OF_IT):
        await connection.execute(statement, int(newest * 1000), rows, STEP_MS, timeout=3600)
    await connection.execute("VACUUM (ANALYZE)", timeout=3600)
    await connection.execute("CHECKPOINT", timeout=3600)


async def _ours(url: str, newest: datetime, scene: Scene) -> Readings:
    length = timedelta(milliseconds=STEP_MS * scene.sizes.history)
    async with await open_store(url) as store:
        first = [await _milliseconds(store.history.list) for _ in range(TIMES)]
        pages = [
            await _milliseconds(partial(store.history.list, **filters))
            for filters in _filters(newest, length)
            for _ in range(TIMES)
        ]
        [middle, *_] = await store.history.list(until=newest - length / 2, limit=1)
        back = [await _milliseconds(lambda: store.history.list(before=middle.id)) for _ in range(TIMES)]
        day = [
            await _milliseconds(lambda: store.history.figures(since=newest - timedelta(days=1))) for _ in range(TIMES)
        ]
        export = await _export(store, newest - length / EXPORTED)
    return {
        "first": min(first),
        "p95": quantiles(pages, n=20)[-1],
        "worst": max(pages),
        "back": min(back),
        "day": min(day),
        **export,
    }


def _filters(newest: datetime, length: timedelta) -> list[dict[str, Any]]:
    """Every filter there is, with what is frequent, rare and absent, and some together."""
    late, early = newest - length / 10, newest - length / 2
    return [
        *({"tool": tool} for tool in ("Grep", "Rare", "None")),
        *({"category": category} for category in ("web", "file")),
        *({"agent_id": agent} for agent in ("agent-7", "nobody")),
        *({"session_id": session} for session in ("session-5", "none")),
        *(
            {"status": status}
            for status in ("succeeded", "failed", "timed_out", "lost", "expired", "queued", "running")
        ),
        *({"error_code": code} for code in ("EXECUTION_ERROR", "TIMEOUT", "NONE")),
        *({"error_text": text} for text in ("timed out", "/dev/sd3", "nowhere")),
        *({"queue": queue} for queue in ("default", "background")),
        {"min_ms": 6_500},
        {"max_ms": 5},
        {"since": late},
        {"until": early},
        {"since": early, "until": late, "tool": "Bash", "status": "failed"},
        {"tool": "Rare", "status": "failed"},
        {"agent_id": "agent-7", "status": "timed_out"},
        {"session_id": "session-5", "error_text": "full"},
    ]


async def _milliseconds(read: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await read()
    return (time.perf_counter() - started) * 1000


async def _export(store: Store, since: datetime) -> Readings:
    rows, highest, before, started = 0, 0.0, resident_megabytes(os.getpid()), time.perf_counter()
    async for page in store.history.pages(since=since):
        rows += len(page)
        highest = max(highest, resident_megabytes(os.getpid()))
    return {"exported": rows / (time.perf_counter() - started), "growth": highest - before}


MEASURE = Measure(
    name="history",
    needs=frozenset({"servers"}),
    rounds_at_most=1,
    sides={"ours": ours},
    rows=[
        Row(
            title="{history:,} rows: first page by any filter, p95 over filters",
            unit="ms",
            key="p95",
            ours="ours",
            bar=Bar("value", "at most", 50),
        ),
        Row(title="{history:,} rows: first page by the slowest filter", unit="ms", key="worst", ours="ours"),
        Row(
            title="{history:,} rows: a page from the middle (the first page)",
            unit="ms",
            key="back",
            ours="ours",
            raw="ours",
            raw_key="first",
            bar=Bar("ratio", "at most", 1.5),
        ),
        Row(
            title="{history:,} rows: figures of a day by tool",
            unit="ms",
            key="day",
            ours="ours",
            bar=Bar("value", "at most", 500),
        ),
        Row(title="{history:,} rows: export of a tenth", unit="/s", key="exported", ours="ours"),
        Row(
            title="{history:,} rows: growth of the process that exports",
            unit="MB",
            key="growth",
            ours="ours",
            bar=Bar("value", "at most", 150),
        ),
    ],
)
