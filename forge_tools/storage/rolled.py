"""What is known of a selection from the hours that are rolled up, and what of it has to be read call by call."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from sqlalchemy import Column, ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import ExecutionStatus, Grouping, Selection
from forge_tools.storage.functions import from_now, is_granted
from forge_tools.storage.measured import HOUR_FORMAT, KEYS
from forge_tools.storage.models import rollup_figures, rollup_hours
from forge_tools.storage.rows import clean
from forge_tools.storage.tallies import Tallies, Tally

HOUR = timedelta(hours=1)

MOST_HELD = 15_000_000
"""Calls whose times are held at once, 16 bytes each, and 32 more of a group that is ranked. Those of more PostgreSQL ranks itself."""

ROWS = 100

SETS: Mapping[Grouping, tuple[str, ...]] = {
    Grouping.TOOL: ("tool", "category", "queue"),
    Grouping.AGENT: ("agent_id",),
    Grouping.SESSION: ("session_id",),
}
"""By what the calls of an hour are told apart, together; each set is named after its first grouping."""

COLUMNS = tuple(name for names in SETS.values() for name in names)

_KEYS = {by: column.name for by, column in KEYS.items() if isinstance(column, Column)}
"""The columns of the tables of figures have the names of those of executions."""

hours, figures = rollup_hours.c, rollup_figures.c


@dataclass(frozen=True, slots=True)
class Rolled:
    """The calls of whole hours in their groups; `rest` selects all others, each once."""

    groups: Tallies
    rest: Sequence[Selection]


async def rolled_up(connection: AsyncConnection, selection: Selection, by: Grouping) -> Rolled | None:
    """The rolled up hours within the bounds of a selection; None where they say nothing, or are not for this role to see."""
    grouped_by = _set_for(selection, by)
    if grouped_by is None or not await _may_read(connection):
        return None
    known = await _hours_within(connection, selection)
    if not known or sum(known.values()) > MOST_HELD:
        return None
    # Those that are rolled up from here on are in the rest: none counts twice.
    groups = await _read(connection, grouped_by, selection, by, known)
    return Rolled(groups, list(_rest(selection, sorted(known))))


def is_rolled_up() -> ColumnElement[bool]:
    """Whether an hour counts: not if a clock that was ahead said that it was over."""
    return (hours.rolled_at <= from_now(0.0)) & (hours.hour < from_now(0.0))


def _set_for(selection: Selection, by: Grouping) -> Grouping | None:
    """The set that tells apart all that is asked for."""
    bounds = {"since", "until"}
    asked = {one.name for one in fields(selection) if getattr(selection, one.name) is not None} - bounds
    asked |= {_KEYS[by]} if by in _KEYS else set()
    return next((name for name, columns in SETS.items() if asked <= set(columns)), None)


async def _may_read(connection: AsyncConnection) -> bool:
    """Clients of deploy/postgres/roles.sql see their own calls only, and figures of all would tell them of others."""
    return bool(await connection.scalar(select(is_granted(rollup_figures.name, "SELECT"))))


async def _hours_within(connection: AsyncConnection, selection: Selection) -> Mapping[datetime, int]:
    """The number of calls of each."""
    query = select(hours.hour, hours.calls).where(is_rolled_up(), hours.calls.is_not(None))
    if selection.since is not None:
        query = query.where(hours.hour >= selection.since)
    if selection.until is not None:
        query = query.where(hours.hour < selection.until)
    found = (await connection.execute(query)).all()
    return {row.hour: row.calls for row in found if selection.until is None or row.hour + HOUR <= selection.until}


async def _read(
    connection: AsyncConnection,
    grouped_by: Grouping,
    selection: Selection,
    by: Grouping,
    known: Mapping[datetime, int],
) -> Tallies:
    key_of = attrgetter(_KEYS[by]) if by in _KEYS else _hour_told
    query = select(rollup_figures).where(
        figures.grouped_by == grouped_by.value,
        figures.hour.between(min(known), max(known)),
        *(
            figures[name] == clean(str(value))
            for name in SETS[grouped_by]
            if (value := getattr(selection, name)) is not None
        ),
    )
    groups: Tallies = Tallies(Tally)
    async with connection.stream(query, execution_options={"yield_per": ROWS}) as rows:
        async for part in rows.partitions():
            for row in part:
                if row.hour in known:
                    _add(row, groups[key_of(row)])
    return groups


def _hour_told(row: Any) -> str:
    return f"{row.hour:{HOUR_FORMAT}}"


def _add(row: Any, group: Tally) -> None:
    others = row.calls - row.succeeded - row.failed - row.rejected
    group.ends[ExecutionStatus.SUCCEEDED] += row.succeeded
    group.ends[ExecutionStatus.FAILED] += row.failed
    group.ends[ExecutionStatus.REJECTED] += row.rejected
    group.ends[ExecutionStatus.CANCELLED] += others
    group.durations.extend(row.durations)
    group.waits.extend(row.waits)


def _rest(selection: Selection, known: Sequence[datetime]) -> Iterator[Selection]:
    """What lies before, between and behind those hours."""
    start = selection.since
    for hour in known:
        if start is None or start < hour:
            yield replace(selection, since=start, until=hour)
        start = hour + HOUR
    if selection.until is None or start is None or start < selection.until:
        yield replace(selection, since=start)
