"""Figures over history: counts, outcomes, run times and waits of calls; from rolled-up hours, else from rows."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from math import ceil, fsum
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import Column, ColumnElement, Row, Select, case, func, literal, select, type_coerce
from sqlalchemy.types import Float

from forge_tools.model.execution import TERMINAL, ExecutionStatus
from forge_tools.model.history import Grouping, Selection
from forge_tools.model.overview import CallFigures, Times
from forge_tools.storage.connection.database import prepare
from forge_tools.storage.functions import from_now, hour_of, is_granted, seconds_between
from forge_tools.storage.history.view import asked, conditions, id_bounds, joined, last, live, time_bounds
from forge_tools.storage.rows import clean, record_of
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import rollup_figures, rollup_hours

PERCENTILES = (50, 95, 99)
FAILED = (ExecutionStatus.FAILED, ExecutionStatus.TIMED_OUT, ExecutionStatus.EXPIRED, ExecutionStatus.LOST)
ROWS = 1_000
"""How many rows are fetched and counted at once, while others on the event loop wait."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The calls of one group: how many had each outcome, and their times in milliseconds."""

    ends: Counter[str] = field(default_factory=Counter)
    durations: "array[float]" = field(default_factory=lambda: array("d"))
    waits: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def calls(self) -> int:
        return self.ends.total()

    @property
    def failed(self) -> int:
        """How many ended otherwise than by success, rejection or cancel."""
        return sum(self.ends[status] for status in FAILED)

    def add(self, other: "Tally") -> None:
        self.ends.update(other.ends)
        self.durations.extend(other.durations)
        self.waits.extend(other.waits)

    def figures(self, key: str | None) -> CallFigures:
        return CallFigures(
            key=key,
            calls=self.calls,
            succeeded=self.ends[ExecutionStatus.SUCCEEDED],
            failed=self.failed,
            rejected=self.ends[ExecutionStatus.REJECTED],
            duration_ms=_spread(self.durations),
            wait_ms=_spread(self.waits),
        )


Tallies = defaultdict[Any, Tally]
"""Groups by their keys; `Tallies(Tally)` is empty."""


async def count(
    connection: AsyncConnection, calls: Select[Any], key_of: Callable[[Row[Any]], Any], into: Tallies
) -> None:
    """Add rows, whose last columns are status, duration and wait, each to the group of its key. No row is kept."""
    async with connection.stream(calls) as rows:
        async for part in rows.partitions(ROWS):
            for row in part:
                status, duration, wait = row[-3:]
                group = into[key_of(row)]
                group.ends[status] += 1
                if duration is not None:
                    group.durations.append(duration)
                if wait is not None:
                    group.waits.append(wait)


def lines(groups: Mapping[str | None, Tally]) -> list[CallFigures]:
    """Return the figures of each group, in the order of their keys, None last."""
    return in_order([group.figures(key) for key, group in groups.items()])


def in_order(figures: Iterable[CallFigures]) -> list[CallFigures]:
    """Sort by key, None last, whether a database or this process has counted."""
    return sorted(figures, key=lambda one: (one.key is None, one.key or ""))


def _spread(times: Sequence[float]) -> Times:
    """Compute percentiles by nearest rank, which are measured times, and the same ones wherever they are computed."""
    if not times:
        return Times(mean=None, max=None, **{f"p{percent}": None for percent in PERCENTILES})
    ranked = sorted(times)
    return Times(
        mean=fsum(ranked) / len(ranked),
        max=ranked[-1],
        **{f"p{percent}": ranked[ceil(len(ranked) * percent / 100) - 1] for percent in PERCENTILES},
    )


KEYS: dict[Grouping, ColumnElement[Any]] = {
    Grouping.TOOL: asked.c.tool,
    Grouping.CATEGORY: asked.c.category,
    Grouping.AGENT: asked.c.agent_id,
    Grouping.SESSION: asked.c.session_id,
    Grouping.QUEUE: asked.c.queue,
    Grouping.HOUR: hour_of(asked.c.queued_at),
}


async def open_up(connection: AsyncConnection, selection: Selection) -> None:
    """Begin to read as of one moment, with settings that suit the joins in what `measured` reads of this selection."""
    await prepare(connection, "figures_of_all" if _is_of_all(selection) else "figures_of_some")


def measured(selection: Selection, *keys: ColumnElement[Any]) -> Select[Any]:
    """Select the calls: `keys`, then status, duration and wait in milliseconds, None if the body never started."""
    status = func.coalesce(last.c.status, live.c.status).label("status")
    wait = type_coerce(seconds_between(asked.c.queued_at, last.c.started_at) * 1000.0, Float).label("wait")
    columns = *keys, status, last.c.duration_ms.label("duration"), wait
    filters = conditions(replace(selection, since=None, until=None))
    if _is_of_all(selection):
        both = joined(*id_bounds(selection, last.c.execution_id)).with_only_columns(*columns)
        return both.where(*id_bounds(selection, asked.c.id), *time_bounds(selection))
    # Each of the few rows that pass a filter is looked up in the other table; a bound there would mislead the planner.
    is_of_ends = selection.error_code is not None or selection.error_text is not None or selection.status in TERMINAL
    first = last.c.execution_id if is_of_ends else asked.c.id
    return joined().with_only_columns(*columns).where(*filters, *id_bounds(selection, first), *time_bounds(selection))


def _is_of_all(selection: Selection) -> bool:
    """Return whether it is bounded by times only."""
    return replace(selection, since=None, until=None) == Selection()


HOUR = timedelta(hours=1)

MOST_HELD = 15_000_000
"""How many calls may have their times in memory at once (more are ranked by PostgreSQL).

Each takes 16 bytes, and 32 more in a group that is ranked.
"""

_READ_AT_ONCE = 100

SETS: Mapping[Grouping, tuple[str, ...]] = {
    Grouping.TOOL: ("tool", "category", "queue"),
    Grouping.AGENT: ("agent_id",),
    Grouping.SESSION: ("session_id",),
}
"""The sets of columns by which the calls of an hour are grouped; each is named after its first."""

COLUMNS = tuple(name for names in SETS.values() for name in names)

_KEYS = {by: column.name for by, column in KEYS.items() if isinstance(column, Column)}
"""The columns of rolled-up figures have the same names as those of executions."""

hours, figures = rollup_hours.c, rollup_figures.c


async def rolled_up(
    connection: AsyncConnection, selection: Selection, by: Grouping
) -> tuple[Tallies, Iterator[Selection]] | None:
    """Return the calls of rolled-up hours in a selection, grouped, and selections for the rest; each call counts once.

    None if such hours do not apply, or this role may not see them.
    """
    grouped_by = _set_for(selection, by)
    # Clients under deploy/postgres/roles.sql see only their own calls; figures of all would tell them of others.
    if grouped_by is None or not await connection.scalar(select(is_granted(rollup_figures.name, "SELECT"))):
        return None
    known = await _hours_within(connection, selection)
    if not known or sum(known.values()) > MOST_HELD:
        return None
    # Hours rolled up from here on belong to the rest: none counts twice.
    groups = await _read(connection, grouped_by, selection, by, known)
    return groups, _rest(selection, sorted(known))


def is_rolled_up() -> ColumnElement[bool]:
    """Return whether an hour counts; not if a clock that was ahead rolled it up before it was over."""
    return (hours.rolled_at <= from_now(0.0)) & (hours.hour < from_now(0.0))


def _set_for(selection: Selection, by: Grouping) -> Grouping | None:
    bounds = {"since", "until"}
    asked = {one.name for one in fields(selection) if getattr(selection, one.name) is not None} - bounds
    asked |= {_KEYS[by]} if by in _KEYS else set()
    return next((name for name, columns in SETS.items() if asked <= set(columns)), None)


async def _hours_within(connection: AsyncConnection, selection: Selection) -> Mapping[datetime, int]:
    query = select(hours.hour, hours.calls).where(is_rolled_up(), hours.calls.is_not(None))
    found = (await connection.execute(query.where(*time_bounds(selection, hours.hour)))).all()
    return {row.hour: row.calls for row in found if selection.until is None or row.hour + HOUR <= selection.until}


async def _read(
    connection: AsyncConnection, grouped_by: Grouping, selection: Selection, by: Grouping, known: Mapping[datetime, int]
) -> Tallies:
    key_of = attrgetter(_KEYS[by]) if by in _KEYS else lambda row: f"{row.hour:%Y-%m-%dT%H:00Z}"
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
    async with connection.stream(query, execution_options={"yield_per": _READ_AT_ONCE}) as rows:
        async for part in rows.partitions():
            for row in part:
                if row.hour in known:
                    _add(row, groups[key_of(row)])
    return groups


def _add(row: Any, group: Tally) -> None:
    others = row.calls - row.succeeded - row.failed - row.rejected
    group.ends[ExecutionStatus.SUCCEEDED] += row.succeeded
    group.ends[ExecutionStatus.FAILED] += row.failed  # one status for all of `FAILED`: only their sum is ever shown
    group.ends[ExecutionStatus.REJECTED] += row.rejected
    group.ends[ExecutionStatus.CANCELLED] += others
    group.durations.extend(row.durations)
    group.waits.extend(row.waits)


def _rest(selection: Selection, known: Sequence[datetime]) -> Iterator[Selection]:
    """Yield what is before, between and after those hours."""
    start = selection.since
    for hour in known:
        if start is None or start < hour:
            yield replace(selection, since=start, until=hour)
        start = hour + HOUR
    if selection.until is None or start is None or start < selection.until:
        yield replace(selection, since=start)


async def read_figures(
    connection: AsyncConnection, selection: Selection, by: Grouping, *, from_rows: bool = False
) -> list[CallFigures]:
    """Return a line for each group, in the order of keys; calls without an agent or session come last, under None.

    Rolled-up hours are used as counted; the others, and with `from_rows` all, are read call by call.
    """
    await open_up(connection, selection)
    known = None if from_rows else await rolled_up(connection, selection, by)
    if known is None:
        return await summed(connection, measured(selection, KEYS[by].label("key")))
    groups, rest = known
    for others in rest:
        await count(connection, measured(others, KEYS[by]), itemgetter(0), groups)
    return lines(groups)


async def summed(connection: AsyncConnection, calls: Select[Any]) -> list[CallFigures]:
    """Return a line for each key of `calls`, whose columns are key, status, duration and wait (ms); None last.

    PostgreSQL ranks by itself. SQLite has no function for it, so its rows are ranked here, in half the time that
    numbering them takes.
    """
    if connection.dialect.name == "sqlite":
        groups: Tallies = Tallies(Tally)
        await count(connection, calls, itemgetter(0), groups)
        return lines(groups)
    rows = await connection.execute(_figures(calls))
    return in_order(
        record_of(CallFigures, row, duration_ms=_times(row, "duration"), wait_ms=_times(row, "wait")) for row in rows
    )


def _figures(calls: Select[Any]) -> Select[Any]:
    one = calls.cte("calls").c
    times = [
        column
        for name in ("duration", "wait")
        for column in (
            func.avg(one[name]).label(f"{name}_mean"),
            func.max(one[name]).label(f"{name}_max"),
            *(
                func.percentile_disc(literal(percent / 100, literal_execute=True))
                .within_group(one[name])
                .label(f"{name}_p{percent}")
                for percent in PERCENTILES
            ),
        )
    ]
    return select(
        one.key,
        func.count().label("calls"),
        _count(one.status, ExecutionStatus.SUCCEEDED).label("succeeded"),
        _count(one.status, *FAILED).label("failed"),
        _count(one.status, ExecutionStatus.REJECTED).label("rejected"),
        *times,
    ).group_by(one.key)


def _count(status: ColumnElement[str], *statuses: ExecutionStatus) -> ColumnElement[int]:
    return func.sum(case((status.in_([one.value for one in statuses]), 1), else_=0))


def _times(row: Any, name: str) -> Times:
    return Times(**{figure: getattr(row, f"{name}_{figure}") for figure in Times.__dataclass_fields__})
