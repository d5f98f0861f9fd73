"""Figures over history: how many calls, how they ended, how long they ran and waited."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, fsum
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, literal, select, text, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Float, Text

from forge_tools.records import CallFigures, ExecutionStatus, Grouping, Selection, Times
from forge_tools.storage.models import seconds_between
from forge_tools.storage.selecting import conditions, id_bounds
from forge_tools.storage.view import asked, joined, last, live

PERCENTILES = (50, 95, 99)
ROWS = 5_000
"""So many are fetched at once where they are ranked here."""

PATIENCE_SECONDS = 300
"""Figures of years are read for longer than any other statement may take."""

SORTED_IN = "64MB"
"""What PostgreSQL may sort in memory: the calls of a day fit, and are not written out."""
FAILED = (ExecutionStatus.FAILED, ExecutionStatus.TIMED_OUT, ExecutionStatus.EXPIRED, ExecutionStatus.LOST)


class hour_of(FunctionElement[str]):  # noqa: N801 it reads as the SQL function it is
    """The hour a moment lies in, UTC, such as `2026-05-01T12:00Z`."""

    type = Text()
    inherit_cache = True


@compiles(hour_of, "postgresql")
def _hour_on_postgresql(element: hour_of, compiler: SQLCompiler, **kw: Any) -> str:
    moment = compiler.process(element.clauses, **kw)
    return f"""to_char({moment} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:00"Z"')"""


@compiles(hour_of, "sqlite")
def _hour_on_sqlite(element: hour_of, compiler: SQLCompiler, **kw: Any) -> str:
    return f"replace(substr({compiler.process(element.clauses, **kw)}, 1, 13), ' ', 'T') || ':00Z'"


_KEYS: dict[Grouping, ColumnElement[Any]] = {
    Grouping.TOOL: asked.c.tool,
    Grouping.CATEGORY: asked.c.category,
    Grouping.AGENT: asked.c.agent_id,
    Grouping.SESSION: asked.c.session_id,
    Grouping.QUEUE: asked.c.queue,
    Grouping.HOUR: hour_of(asked.c.queued_at),
}


async def read_figures(connection: AsyncConnection, selection: Selection, by: Grouping) -> list[CallFigures]:
    """One line a group, in the order of its key; calls without an agent or session have the key None, and come last."""
    if connection.dialect.name == "postgresql":
        await connection.execute(text(f"SET LOCAL statement_timeout = '{PATIENCE_SECONDS}s'"))
        await connection.execute(text(f"SET LOCAL work_mem = '{SORTED_IN}'"))
    return await summed(connection, _calls(selection, by))


async def summed(connection: AsyncConnection, calls: Select[Any]) -> list[CallFigures]:
    """One line a key of `calls`, whose columns are key, status, duration and wait in milliseconds; in the order of keys, None last.

    Percentiles are by nearest rank: a time that was measured, and the same one on every database. PostgreSQL ranks by
    itself; SQLite has no function for it, and its rows are ranked here, in half the time that numbering them takes.
    """
    if connection.dialect.name == "sqlite":
        return await _ranked_here(connection, calls)
    rows = await connection.execute(_figures(calls))
    return [
        CallFigures(
            key=row["key"],
            calls=row["calls"],
            succeeded=row["succeeded"],
            failed=row["failed"],
            rejected=row["rejected"],
            duration_ms=_times(row, "duration"),
            wait_ms=_times(row, "wait"),
        )
        for row in rows.mappings()
    ]


def _figures(calls: Select[Any]) -> Select[Any]:
    one = calls.cte("calls").c
    return (
        select(
            one.key,
            func.count().label("calls"),
            _count(one.status, ExecutionStatus.SUCCEEDED).label("succeeded"),
            _count(one.status, *FAILED).label("failed"),
            _count(one.status, ExecutionStatus.REJECTED).label("rejected"),
            *(
                summary(one[name]).label(f"{name}_{label}")
                for name in ("duration", "wait")
                for label, summary in (("mean", func.avg), ("max", func.max))
            ),
            *(
                _at_rank(one[name], percent).label(f"{name}_p{percent}")
                for name in ("duration", "wait")
                for percent in PERCENTILES
            ),
        )
        .group_by(one.key)
        .order_by(one.key)
    )


def _at_rank(times: ColumnElement[Any], percent: int) -> ColumnElement[Any]:
    return func.percentile_disc(literal(percent / 100, literal_execute=True)).within_group(times)


def _count(status: ColumnElement[str], *statuses: ExecutionStatus) -> ColumnElement[int]:
    return func.sum(case((status.in_([one.value for one in statuses]), 1), else_=0))


def _times(row: Any, name: str) -> Times:
    return Times(
        mean=row[f"{name}_mean"],
        max=row[f"{name}_max"],
        **{f"p{percent}": row[f"{name}_p{percent}"] for percent in PERCENTILES},
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """The calls of one key: how many ended how, and their times."""

    ends: Counter[str] = field(default_factory=Counter)
    durations: "array[float]" = field(default_factory=lambda: array("d"))
    waits: "array[float]" = field(default_factory=lambda: array("d"))


async def _ranked_here(connection: AsyncConnection, calls: Select[Any]) -> list[CallFigures]:
    """Two floats a call are held, no rows."""
    groups: defaultdict[str | None, _Group] = defaultdict(_Group)
    async with connection.stream(calls) as rows:
        async for part in rows.partitions(ROWS):
            for key, status, duration, wait in part:
                group = groups[key]
                group.ends[status] += 1
                if duration is not None:
                    group.durations.append(duration)
                if wait is not None:
                    group.waits.append(wait)
    return [
        CallFigures(
            key=key,
            calls=group.ends.total(),
            succeeded=group.ends[ExecutionStatus.SUCCEEDED],
            failed=sum(group.ends[status] for status in FAILED),
            rejected=group.ends[ExecutionStatus.REJECTED],
            duration_ms=_spread(group.durations),
            wait_ms=_spread(group.waits),
        )
        for key, group in sorted(groups.items(), key=lambda item: (item[0] is None, item[0] or ""))
    ]


def _spread(times: Sequence[float]) -> Times:
    if not times:
        return Times(mean=None, max=None, **{f"p{percent}": None for percent in PERCENTILES})
    ranked = sorted(times)
    return Times(
        mean=fsum(ranked) / len(ranked),
        max=ranked[-1],
        **{f"p{percent}": ranked[ceil(len(ranked) * percent / 100) - 1] for percent in PERCENTILES},
    )


def _calls(selection: Selection, by: Grouping) -> Select[Any]:
    status = func.coalesce(last.c.status, live.c.status).label("status")
    wait = type_coerce(seconds_between(asked.c.queued_at, last.c.started_at) * 1000.0, Float).label("wait")
    return (
        joined(*id_bounds(selection, last.c.execution_id))
        .with_only_columns(_KEYS[by].label("key"), status, last.c.duration_ms.label("duration"), wait)
        .where(*conditions(selection))
    )
