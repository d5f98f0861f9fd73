"""Figures over history: how many calls, how they ended, how long they ran and waited."""

from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import CallFigures, ExecutionStatus, Grouping, Selection, Times
from forge_tools.storage.measured import KEYS, measured, open_up
from forge_tools.storage.rolled import rolled_up
from forge_tools.storage.tallies import FAILED, PERCENTILES, Tallies, Tally, count, in_order, lines


async def read_figures(
    connection: AsyncConnection, selection: Selection, by: Grouping, *, from_rows: bool = False
) -> list[CallFigures]:
    """One line a group, in the order of its key; calls without an agent or session have the key None, and come last.

    Hours that are rolled up are taken as they were counted, the others, and with `from_rows` all, are read call by call.
    """
    await open_up(connection, selection)
    known = None if from_rows else await rolled_up(connection, selection, by)
    if known is None:
        return await summed(connection, measured(selection, KEYS[by].label("key")))
    for rest in known.rest:
        await count(connection, measured(rest, KEYS[by]), itemgetter(0), known.groups)
    return lines(known.groups)


async def summed(connection: AsyncConnection, calls: Select[Any]) -> list[CallFigures]:
    """One line a key of `calls`, whose columns are key, status, duration and wait in milliseconds; in the order of keys, None last.

    PostgreSQL ranks by itself; SQLite has no function for it, and its rows are ranked here, in half the time that
    numbering them takes.
    """
    if connection.dialect.name == "sqlite":
        groups: Tallies = Tallies(Tally)
        await count(connection, calls, itemgetter(0), groups)
        return lines(groups)
    rows = await connection.execute(_figures(calls))
    return in_order(
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
    )


def _figures(calls: Select[Any]) -> Select[Any]:
    one = calls.cte("calls").c
    return select(
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
    ).group_by(one.key)


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
