"""Lists of executions, attempts or events over all history, by pages; each continues after the last row before it."""

import operator
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Row, Select, and_, asc, case, desc, false, func, literal, select, true

from forge_tools.errors import ExecutionNotFoundError
from forge_tools.model.execution import TERMINAL, ExecutionStatus, id_time, is_id
from forge_tools.model.history import AttemptRecord, EventRecord, ExecutionRecord, Selection
from forge_tools.storage.connection.database import Database, prepare
from forge_tools.storage.history.view import asked, conditions, id_bounds, joined, last, live, spelled, time_bounds
from forge_tools.storage.rows import clean, record_of
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import execution_attempts, execution_events, execution_queue, executions
from forge_tools.storage.tables import DEFAULT_QUEUE

R = TypeVar("R", ExecutionRecord, AttemptRecord, EventRecord)
Place = tuple[Any, ...]

FIRST_STEP, GROWTH, LONGEST_STEP = 500, 4, 32_000
"""How many index entries a step reads: few at first, which fill most pages, and never too many for one statement."""

PATIENT_STEP = 2_000
"""The most when time is short: the last step may begin just before time runs out."""

done = execution_events.alias("v")


@dataclass(frozen=True, slots=True)
class Direction:
    """Which end of a list comes first: a column's order, and the comparisons for behind a value, or from it on."""

    orders: Callable[[ColumnElement[Any]], ColumnElement[Any]]
    is_behind: Callable[[Any, Any], ColumnElement[bool]]
    is_from: Callable[[Any, Any], ColumnElement[bool]]


NEWEST_FIRST = Direction(desc, operator.lt, operator.le)
OLDEST_FIRST = Direction(asc, operator.gt, operator.ge)


@dataclass(frozen=True, slots=True)
class Index:
    """The narrowest index for a selection: its column in the order of the list, and which of its entries match."""

    place: ColumnElement[Any]
    entries: Sequence[ColumnElement[bool]] = ()
    bounds: Sequence[ColumnElement[bool]] = ()


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """The query, the columns that order it by time, how to find the place of a cursor or a row in that order, and the index to read.

    A `twin` is a column of another table that equals the first of these: with bounds on both, both tables are read from
    the right place on, since no planner infers one from the other.
    """

    query: Select[Any]
    order: tuple[ColumnElement[Any], ...]
    place: Callable[[str], Place]
    place_of: Callable[[Row[Any]], Place]
    record: Callable[[Row[Any]], R]
    index: Index
    twin: ColumnElement[Any] | None = None

    def is_behind(self, place: Place, direction: Direction) -> ColumnElement[bool]:
        """Return the condition for rows behind a place.

        A place without its last value is behind all rows that share its first.
        """
        passes = direction.is_behind(self.order[0], place[0])
        for column, value in zip(self.order[1:], place[1:], strict=False):
            passes |= direction.is_behind(column, value)
        return passes


def moment_of(place: Place) -> datetime:
    major: datetime | str = place[0]
    return datetime.fromtimestamp(id_time(major), UTC) if isinstance(major, str) else major


def executions_listed(selection: Selection) -> Listing[ExecutionRecord]:
    """List executions in the order in which they were queued."""
    query = joined().where(*conditions(selection))
    shown = [column for column in query.selected_columns if column.key in ExecutionRecord.__dataclass_fields__]
    query = query.with_only_columns(*shown, maintain_column_froms=True)
    told = (selection.error_code, selection.error_text, selection.min_ms, selection.max_ms)
    is_over = selection.status in TERMINAL or any(value is not None for value in told)
    return Listing(
        query,
        (asked.c.id,),
        _execution_place,
        lambda row: (row.id,),
        execution_record,
        _index(selection),
        twin=last.c.execution_id if is_over else None,
    )


def attempts_listed(selection: Selection) -> Listing[AttemptRecord]:
    """List ended attempts in the order their executions were queued. Filters by status, error and duration are theirs.

    Raises:
        ValueError: for a status that no attempt has, since executions that wait or run have none that has ended.
    """
    if selection.status is not None and selection.status not in TERMINAL:
        raise ValueError(
            f"No attempt has the status {str(selection.status)!r}: attempts are only listed once they have ended."
        )
    columns = (*last.c, asked.c.tool, asked.c.category, asked.c.agent_id, asked.c.session_id, asked.c.queue)
    query = select(*columns).select_from(asked.join(last, last.c.execution_id == asked.c.id))
    query = query.where(*conditions(selection), *id_bounds(selection, last.c.execution_id))
    return Listing(
        query,
        (asked.c.id, last.c.attempt),
        _attempt_place,
        operator.attrgetter("execution_id", "attempt"),
        lambda row: record_of(AttemptRecord, row, status=ExecutionStatus(row.status)),
        _index(selection),
        twin=last.c.execution_id,
    )


def events_listed(selection: Selection, kind: str | None) -> Listing[EventRecord]:
    """List events in the order they happened, those of pruning included.

    Time bounds apply to the events, other filters to their executions.
    """
    query = select(*done.c, asked.c.tool, asked.c.category, asked.c.agent_id, asked.c.session_id)
    of_them = conditions(replace(selection, since=None, until=None))
    tables = done.outerjoin(asked, asked.c.id == done.c.execution_id)
    if of_them:
        tables = tables.outerjoin(live, live.c.id == asked.c.id).outerjoin(
            last, and_(last.c.execution_id == asked.c.id, last.c.final)
        )
    # A CASE, from which no planner starts: far more events than these are of such executions.
    wanted = [case((and_(*of_them), true()), else_=false())] if of_them else []
    query = query.select_from(tables).where(*wanted, *time_bounds(selection, done.c.at), *_of_kind(kind, done.c.kind))
    event = execution_events.c
    return Listing(
        query,
        (done.c.at, done.c.id),
        _event_place,
        operator.attrgetter("at", "id"),
        partial(record_of, EventRecord),
        Index(event.at, _of_kind(kind, event.kind), time_bounds(selection, event.at)),
    )


def execution_record(row: Row[Any]) -> ExecutionRecord:
    """Read one row of the view. An execution that neither ended nor waits, as after a careless restore, is lost."""
    status = ExecutionStatus(row.status or ExecutionStatus.LOST)
    return record_of(ExecutionRecord, row, status=status, metadata=row.metadata or {})


def _of_kind(kind: str | None, column: ColumnElement[str]) -> list[ColumnElement[bool]]:
    return [] if kind is None else [column == clean(kind)]


def _execution_place(cursor: str) -> Place:
    if not is_id(cursor.lower()):
        raise ExecutionNotFoundError(f"{cursor[:60]!r} is not an execution id; `before` needs a whole one.")
    return (cursor.lower(),)


def _attempt_place(cursor: str) -> Place:
    execution_id, _, number = cursor.lower().partition(":")
    if not is_id(execution_id) or not re.fullmatch(r"[0-9]{1,9}", number):
        raise ExecutionNotFoundError(f"{cursor[:60]!r} is not an attempt; `before` needs an id, a colon and a number.")
    return execution_id, int(number)


def _event_place(cursor: str) -> Place:
    """Return the moment of that event; if it was pruned, of the last one before it."""
    if not re.fullmatch(r"[0-9]{1,18}", cursor):
        raise ExecutionNotFoundError(f"{cursor[:60]!r} is not the number of an event, which `before` needs.")
    number, there = int(cursor), execution_events.c
    before = select(there.at).where(there.id <= number).order_by(there.id.desc()).limit(1)
    return before.scalar_subquery(), number


class Page(list[R], Generic[R]):
    """Rows, newest first. `older` is the `before` of the next page; None at the end."""

    older: str | None = None


class Stretch(list[R], Generic[R]):
    """The selected rows, oldest first, of a part of history that ends at `until`; it may be empty."""

    until: datetime


async def read_page(
    connection: AsyncConnection,
    listing: Listing[R],
    *,
    limit: int,
    before: str | None = None,
    patience: float | None = None,
) -> Page[R]:
    """Return the newest `limit` rows before a cursor; fewer if `patience` seconds run out first."""
    await prepare(connection, "page")
    began, longest = time.monotonic(), LONGEST_STEP if patience is None else PATIENT_STEP
    walk = _Walk(listing, NEWEST_FIRST, longest, None if before is None else listing.place(before))
    page: Page[R] = Page()
    while True:
        page += await walk.step(connection, limit - len(page))
        if len(page) == limit:
            page.older = page[-1].cursor
            return page
        if walk.place is None:
            return page
        if patience is not None and time.monotonic() - began >= patience:
            older = await _cursor(connection, listing, walk.place[0])
            if older != before:  # a step may end where it began, if more rows share a place than it reads
                page.older = older
                return page


async def read_all(database: Database, listing: Listing[R], size: int) -> AsyncIterator[Stretch[R]]:
    """Yield all rows, oldest first, at most `size` a stretch.

    Each stretch is a transaction of its own: the consumer may take long to write the rows, and must block nothing.
    """
    walk = _Walk(listing, OLDEST_FIRST, LONGEST_STEP)
    while not walk.is_over:
        async with database.reading() as connection:
            await prepare(connection, "page")
            rows = await walk.step(connection, size)
        if walk.reached is not None:
            stretch: Stretch[R] = Stretch(rows)
            stretch.until = moment_of(walk.reached)
            yield stretch


class _Walk(Generic[R]):
    """Goes through a list in steps, which grow where little is found. `place` is where the next one begins."""

    def __init__(self, listing: Listing[R], direction: Direction, longest: int, place: Place | None = None) -> None:
        self.place = place
        self.reached = place
        """How far it has come; kept at the end, when `place` is None."""
        self.is_over = False
        self._listing: Listing[R] = listing
        self._index, self._direction = listing.index, direction
        self._entries, self._longest = FIRST_STEP, longest

    async def step(self, connection: AsyncConnection, limit: int) -> list[R]:
        """Return the next step's rows, at most `limit`; if there are more, the following step begins behind these."""
        entries = select(self._index.place).where(*self._index.entries, *self._index.bounds, *self._reached())
        entries = entries.order_by(self._direction.orders(self._index.place))
        count = self._entries + self._is_whole  # the entry at the place was counted before
        edge: Any = await connection.scalar(entries.offset(count - 1).limit(1))
        window = self._window(entries.limit(count), edge)
        query = self._listing.query.where(*window).order_by(*map(self._direction.orders, self._listing.order))
        found = (await connection.execute(query.limit(limit))).all()
        self._move(found, edge, is_full=len(found) == limit)
        return [self._listing.record(row) for row in found]

    @property
    def _is_whole(self) -> bool:
        """Whether the place is a whole row; others with the same index entry may follow it."""
        return self.place is not None and len(self.place) > 1

    def _reached(self) -> Iterator[ColumnElement[bool]]:
        if self.place is not None:
            reaches = self._direction.is_from if self._is_whole else self._direction.is_behind
            yield reaches(self._index.place, self.place[0])

    def _window(self, entries: Select[Any], edge: Any) -> Iterator[ColumnElement[bool]]:
        """Return the conditions for the rows of one step, up to its edge.

        PostgreSQL estimates a range between two known ids as one row, and then compares each row of one table with each
        of another. So both ends are subqueries, whose values it does not know.
        """
        listing, direction = self._listing, self._direction
        columns = [listing.order[0]] if listing.twin is None else [listing.order[0], listing.twin]
        first = None if self.place is None else self.place[0]
        if len(columns) > 1 and first is not None and edge is not None:
            first, edge = (select(literal(end, columns[0].type)).scalar_subquery() for end in (first, edge))
        for column in columns:
            if first is not None:
                yield direction.is_from(column, first)
            if edge is not None:
                yield ~direction.is_behind(column, edge)
        if self.place is not None:
            yield listing.is_behind(self.place, direction)
        if self._index.entries:
            yield listing.order[0].in_(entries)

    def _move(self, rows: Sequence[Row[Any]], edge: Any, *, is_full: bool) -> None:
        if is_full:
            self.place = self.reached = self._listing.place_of(rows[-1])
            self._entries = max(FIRST_STEP, self._entries // GROWTH)
            return
        self.place, self.is_over = (None, True) if edge is None else ((edge,), False)
        self.reached = self.place or (self._listing.place_of(rows[-1]) if rows else None)
        self._entries = min(self._entries * GROWTH, self._longest)


async def _cursor(connection: AsyncConnection, listing: Listing[R], floor: Any) -> str:
    if listing.order[0].table is not done:
        return str(floor) if len(listing.order) == 1 else f"{floor}:0"
    event = execution_events.c
    return str(await connection.scalar(select(func.min(event.id)).where(event.at == floor)))


def _index(selection: Selection) -> Index:
    """Choose the index by a rule: the planner mistakes rare values for frequent ones, and then reads for seconds."""
    place, *entries = next(_indexes(selection), (executions.c.id,))
    return Index(place, entries, id_bounds(selection, place))


def _indexes(selection: Selection) -> Iterator[tuple[ColumnElement[Any], *tuple[ColumnElement[bool], ...]]]:
    """Yield the indexes that fit, the narrowest first."""
    asked, ended = executions.c, execution_attempts.c
    is_notable = ended.status != spelled(ExecutionStatus.SUCCEEDED)
    if selection.session_id is not None:
        yield asked.id, asked.session_id == clean(selection.session_id)
    if selection.error_code is not None:
        yield ended.execution_id, ended.error_code == clean(str(selection.error_code))
    if selection.status in TERMINAL and selection.status != ExecutionStatus.SUCCEEDED:
        yield ended.execution_id, ended.status == spelled(ExecutionStatus(selection.status)), is_notable
    elif selection.status is not None and selection.status != ExecutionStatus.SUCCEEDED:
        yield execution_queue.c.id, execution_queue.c.status == spelled(ExecutionStatus(selection.status))
    if selection.queue not in (None, DEFAULT_QUEUE):
        yield asked.id, asked.queue == clean(selection.queue), asked.queue != spelled(DEFAULT_QUEUE)
    if selection.error_text is not None:
        yield ended.execution_id, is_notable
    for name in ("agent_id", "tool", "category"):
        value = getattr(selection, name)
        if value is not None:
            yield asked.id, asked[name] == clean(str(value))
