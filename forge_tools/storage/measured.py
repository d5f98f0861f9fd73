"""Calls as figures see them: what each is told apart by, how it ended, how long it ran and waited."""

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Select, func, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import Float

from forge_tools.records import TERMINAL, Grouping, Selection
from forge_tools.storage.functions import hour_of, seconds_between
from forge_tools.storage.selecting import conditions, id_bounds, queued_within
from forge_tools.storage.statements import prepare
from forge_tools.storage.view import asked, joined, last, live

HOUR_FORMAT = "%Y-%m-%dT%H:00Z"


KEYS: dict[Grouping, ColumnElement[Any]] = {
    Grouping.TOOL: asked.c.tool,
    Grouping.CATEGORY: asked.c.category,
    Grouping.AGENT: asked.c.agent_id,
    Grouping.SESSION: asked.c.session_id,
    Grouping.QUEUE: asked.c.queue,
    Grouping.HOUR: hour_of(asked.c.queued_at),
}


async def open_up(connection: AsyncConnection, selection: Selection) -> None:
    """Begin to read: all of one moment, and what `measured` reads of this selection is joined as it should be."""
    await prepare(connection, "figures_of_all" if _is_of_all(selection) else "figures_of_some")


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
