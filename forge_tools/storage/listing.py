"""Lists over all of history, executions, attempts or events: a page at a time, each going on behind the last row of the one before."""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Row, Select, and_, asc, desc, select

from forge_tools.errors import ExecutionNotFoundError
from forge_tools.records import (
    TERMINAL,
    AttemptRecord,
    EventRecord,
    ExecutionRecord,
    ExecutionStatus,
    Selection,
    id_time,
    is_id,
)
from forge_tools.storage.functions import seen_last
from forge_tools.storage.models import execution_events
from forge_tools.storage.rows import clean, record_of
from forge_tools.storage.selecting import conditions, id_bounds
from forge_tools.storage.view import asked, joined, last, live

R = TypeVar("R", ExecutionRecord, AttemptRecord, EventRecord)
Order = tuple[ColumnElement[Any], ...]
Place = tuple[Any, ...]

_MOST_DIGITS = 9, 18
"""Of an attempt and of an event: more do not fit their columns, or could not be there."""

done = execution_events.alias("v")


@dataclass(frozen=True, slots=True)
class Direction:
    """Which end of a list comes first: how it orders a column, and compares with a value what lies behind, from, or up to it."""

    orders: Callable[[ColumnElement[Any]], ColumnElement[Any]]
    is_behind: Callable[[Any, Any], ColumnElement[bool]]
    is_from: Callable[[Any, Any], ColumnElement[bool]]
    is_up_to: Callable[[Any, Any], ColumnElement[bool]]


NEWEST_FIRST = Direction(desc, operator.lt, operator.le, operator.ge)
OLDEST_FIRST = Direction(asc, operator.gt, operator.ge, operator.le)


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """What is selected, the columns whose order is that of time, and where in it a cursor or a record stands.

    A `twin` equals the first of these columns, in another table, which is then read from the right place on, too.
    """

    query: Select[Any]
    order: Order
    place: Callable[[str], Place]
    place_of: Callable[[Row[Any]], Place]
    record: Callable[[Row[Any]], R]
    twin: ColumnElement[Any] | None = None

    def first(self, limit: int, direction: Direction) -> Select[Any]:
        """The first rows in this direction."""
        return self.query.order_by(*map(direction.orders, self.order)).limit(limit)

    def is_behind(self, place: Place, direction: Direction) -> ColumnElement[bool]:
        """Whether one of the rows from a place on lies behind it. A place without its last value is behind all that share the first."""
        passes = direction.is_behind(self.order[0], place[0])
        for column, value in zip(self.order[1:], place[1:], strict=False):
            passes |= direction.is_behind(column, value)
        return passes


def moment_of(place: Place) -> datetime:
    """The time at which a place is."""
    major: datetime | str = place[0]
    return datetime.fromtimestamp(id_time(major), UTC) if isinstance(major, str) else major


def executions_listed(selection: Selection) -> Listing[ExecutionRecord]:
    """Executions, in the order in which they were queued."""
    return Listing(joined().where(*conditions(selection)), (asked.c.id,), _execution_place, _by_id, execution_record)


def attempts_listed(selection: Selection) -> Listing[AttemptRecord]:
    """Attempts that have ended, in the order in which their executions were queued. Status, error and duration are theirs.

    Raises:
        ValueError: for a status that no attempt has, since what waits or runs has none that has ended.
    """
    if selection.status is not None and selection.status not in TERMINAL:
        raise ValueError(
            f"No attempt has the status {str(selection.status)!r}: attempts are rows when they have ended."
        )
    columns = (*last.c, asked.c.tool, asked.c.category, asked.c.agent_id, asked.c.session_id, asked.c.queue)
    query = select(*columns).select_from(asked.join(last, last.c.execution_id == asked.c.id))
    query = query.where(*conditions(selection), *id_bounds(selection, last.c.execution_id))
    order = asked.c.id, last.c.attempt
    return Listing(query, order, _attempt_place, _by_number, _attempt_record, twin=last.c.execution_id)


def events_listed(selection: Selection, kind: str | None) -> Listing[EventRecord]:
    """Events in the order in which they happened, also those of pruning; times bound them, the rest is of their executions."""
    query = select(*done.c, asked.c.tool, asked.c.category, asked.c.agent_id, asked.c.session_id)
    of_them = conditions(replace(selection, since=None, until=None))
    tables = done.outerjoin(asked, asked.c.id == done.c.execution_id)
    if of_them:
        tables = tables.outerjoin(live, live.c.id == asked.c.id).outerjoin(
            last, and_(last.c.execution_id == asked.c.id, last.c.final)
        )
    wanted = [seen_last(and_(*of_them))] if of_them else []
    query = query.select_from(tables).where(*wanted, *_of_events(selection, kind))
    return Listing(query, (done.c.at, done.c.id), _event_place, _by_time, _event_record)


def execution_record(row: Row[Any]) -> ExecutionRecord:
    """One row of the view; what has neither ended nor waits in the queue, as a careless restore may leave it, is lost."""
    status = ExecutionStatus(row.status or ExecutionStatus.LOST)
    return record_of(ExecutionRecord, row, status=status, metadata=row.metadata or {})


def _of_events(selection: Selection, kind: str | None) -> Iterator[ColumnElement[bool]]:
    if selection.since is not None:
        yield done.c.at >= selection.since
    if selection.until is not None:
        yield done.c.at < selection.until
    if kind is not None:
        yield done.c.kind == clean(kind)


def _execution_place(cursor: str) -> Place:
    if not is_id(cursor.lower()):
        raise ExecutionNotFoundError(f"{cursor[:60]!r} is no execution id; `before` takes a whole one.")
    return (cursor.lower(),)


def _attempt_place(cursor: str) -> Place:
    execution_id, _, number = cursor.lower().partition(":")
    if not is_id(execution_id) or not _is_number(number, _MOST_DIGITS[0]):
        raise ExecutionNotFoundError(f"{cursor[:60]!r} is no attempt; `before` takes an id, a colon and a number.")
    return execution_id, int(number)


def _event_place(cursor: str) -> Place:
    """The moment of that event, or where it is pruned of the last one before it."""
    if not _is_number(cursor, _MOST_DIGITS[1]):
        raise ExecutionNotFoundError(f"{cursor[:60]!r} is no number of an event, which `before` takes.")
    number, there = int(cursor), execution_events.c
    before = select(there.at).where(there.id <= number).order_by(there.id.desc()).limit(1)
    return before.scalar_subquery(), number


def _by_id(row: Row[Any]) -> Place:
    return (row.id,)


def _by_number(row: Row[Any]) -> Place:
    return row.execution_id, row.attempt


def _by_time(row: Row[Any]) -> Place:
    return row.at, row.id


def _is_number(text: str, most_digits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= most_digits


def _attempt_record(row: Row[Any]) -> AttemptRecord:
    return record_of(AttemptRecord, row, status=ExecutionStatus(row.status))


def _event_record(row: Row[Any]) -> EventRecord:
    return record_of(EventRecord, row)
