"""Figures over history: how many calls, how they ended, how long they ran and waited."""

from typing import Any

from sqlalchemy import CTE, ColumnElement, Select, case, func, literal, select, text, type_coerce
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
    """One line a group, in the order of its key; calls without an agent or session have the key None."""
    if connection.dialect.name == "postgresql":
        await connection.execute(text(f"SET LOCAL statement_timeout = '{PATIENCE_SECONDS}s'"))
        await connection.execute(text(f"SET LOCAL work_mem = '{SORTED_IN}'"))
    return await summed(connection, _calls(selection, by))


async def summed(connection: AsyncConnection, calls: Select[Any]) -> list[CallFigures]:
    """One line a key of `calls`, whose columns are key, status, duration and wait in milliseconds; in the order of keys."""
    rows = await connection.execute(_figures(calls.cte("calls"), connection.dialect.name))
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


def _figures(calls: CTE, dialect: str) -> Select[Any]:
    """Percentiles are by nearest rank: a time that was measured, and the same one on every database."""
    rows, percentile = (calls, _sorted) if dialect == "postgresql" else (_ranked(calls), _at_rank)
    one = rows.c
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
                percentile(one, name, percent).label(f"{name}_p{percent}")
                for name in ("duration", "wait")
                for percent in PERCENTILES
            ),
        )
        .group_by(one.key)
        .order_by(one.key)
    )


def _sorted(one: Any, name: str, percent: int) -> ColumnElement[Any]:
    return func.percentile_disc(literal(percent / 100, literal_execute=True)).within_group(one[name])


def _at_rank(one: Any, name: str, percent: int) -> ColumnElement[Any]:
    return func.max(case((one[f"{name}_rank"] == (one[f"{name}_count"] * percent + 99) // 100, one[name])))


def _ranked(calls: CTE) -> CTE:
    """What SQLite needs instead of `percentile_disc`; in PostgreSQL it takes twice as long."""
    ranks = [
        column
        for name in ("duration", "wait")
        for column in (
            func.row_number()
            .over(partition_by=calls.c.key, order_by=[calls.c[name].is_(None), calls.c[name]])
            .label(f"{name}_rank"),
            func.count(calls.c[name]).over(partition_by=calls.c.key).label(f"{name}_count"),
        )
    ]
    return select(*calls.c, *ranks).cte("ranked")


def _calls(selection: Selection, by: Grouping) -> Select[Any]:
    status = func.coalesce(last.c.status, live.c.status).label("status")
    wait = type_coerce(seconds_between(asked.c.queued_at, last.c.started_at) * 1000.0, Float).label("wait")
    return (
        joined(*id_bounds(selection, last.c.execution_id))
        .with_only_columns(_KEYS[by].label("key"), status, last.c.duration_ms.label("duration"), wait)
        .where(*conditions(selection))
    )


def _count(status: ColumnElement[str], *statuses: ExecutionStatus) -> ColumnElement[int]:
    return func.sum(case((status.in_([one.value for one in statuses]), 1), else_=0))


def _times(row: Any, name: str) -> Times:
    return Times(
        mean=row[f"{name}_mean"],
        max=row[f"{name}_max"],
        **{f"p{percent}": row[f"{name}_p{percent}"] for percent in PERCENTILES},
    )
