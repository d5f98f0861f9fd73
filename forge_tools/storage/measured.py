"""Calls as figures see them: what each is told apart by, how it ended, how long it ran and waited."""

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Select, func, text, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Float, Text

from forge_tools.records import TERMINAL, Grouping, Selection
from forge_tools.storage.functions import seconds_between
from forge_tools.storage.selecting import conditions, id_bounds, queued_within
from forge_tools.storage.view import asked, joined, last, live

SORTED_IN = "64MB"
"""What PostgreSQL may sort in memory: the calls of a day fit, and are not written out."""

HOUR_FORMAT = "%Y-%m-%dT%H:00Z"


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


KEYS: dict[Grouping, ColumnElement[Any]] = {
    Grouping.TOOL: asked.c.tool,
    Grouping.CATEGORY: asked.c.category,
    Grouping.AGENT: asked.c.agent_id,
    Grouping.SESSION: asked.c.session_id,
    Grouping.QUEUE: asked.c.queue,
    Grouping.HOUR: hour_of(asked.c.queued_at),
}


async def open_up(connection: AsyncConnection, selection: Selection) -> None:
    """Begin to read: all of one moment, and PostgreSQL joins what `measured` reads of this selection as it should.

    It takes what lies between two ids for one row, and would then compare each call of an hour with each attempt of it.
    """
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        await connection.execute(text(f"SET LOCAL work_mem = '{SORTED_IN}'"))
        await connection.execute(text(f"SET LOCAL enable_nestloop = {'off' if _is_of_all(selection) else 'on'}"))


def measured(selection: Selection, *keys: ColumnElement[Any]) -> Select[Any]:
    """The selected calls: their `keys`, then status, duration and wait, which are milliseconds, or None without a start."""
    status = func.coalesce(last.c.status, live.c.status).label("status")
    wait = type_coerce(seconds_between(asked.c.queued_at, last.c.started_at) * 1000.0, Float).label("wait")
    columns = *keys, status, last.c.duration_ms.label("duration"), wait
    filters = conditions(replace(selection, since=None, until=None))
    if _is_of_all(selection):
        both = joined(*id_bounds(selection, last.c.execution_id)).with_only_columns(*columns)
        return both.where(*id_bounds(selection, asked.c.id), *queued_within(selection))
    # Each of the few that a filter leaves is looked up in the other table: a bound there would be taken for a better way.
    first = last.c.execution_id if _is_of_ends(selection) else asked.c.id
    return joined().with_only_columns(*columns).where(*filters, *id_bounds(selection, first), *queued_within(selection))


def _is_of_all(selection: Selection) -> bool:
    """Whether nothing but times bounds it."""
    return replace(selection, since=None, until=None) == Selection()


def _is_of_ends(selection: Selection) -> bool:
    """Whether a filter is on final attempts, by an index of theirs."""
    return selection.error_code is not None or selection.error_text is not None or selection.status in TERMINAL
