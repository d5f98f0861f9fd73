"""Reads history step by step, each of them over so many rows of one index: no statement reads all there is."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic

from sqlalchemy import ColumnElement, Dialect, Row, Select, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import TERMINAL, ExecutionStatus, Selection
from forge_tools.storage.engine import Database
from forge_tools.storage.listing import NEWEST_FIRST, OLDEST_FIRST, Direction, Listing, Place, R, done, moment_of
from forge_tools.storage.models import DEFAULT_QUEUE, execution_attempts, execution_events, execution_queue, executions
from forge_tools.storage.rows import clean
from forge_tools.storage.selecting import id_bounds
from forge_tools.storage.statements import prepare
from forge_tools.storage.view import last

FIRST_STEP, GROWTH, LONGEST_STEP = 500, 4, 32_000
"""Entries that a step looks at: few at first, since most pages are full with them, and never more than a statement can."""

PATIENT_STEP = 2_000
"""The most where time is short: the last step begins before it is over."""


class Page(list[R], Generic[R]):
    """Rows, newest first. `older` is what `before` takes to go on behind the last that was looked at; None at the end."""

    older: str | None = None


class Stretch(list[R], Generic[R]):
    """Rows, oldest first, of a part of history that ends at a moment; none where none there is selected."""

    until: datetime


@dataclass(frozen=True, slots=True)
class Index:
    """The narrowest index for a selection: the column that puts it in the order of the list, and which entries count."""

    place: ColumnElement[Any]
    entries: Sequence[ColumnElement[bool]] = ()
    bounds: Sequence[ColumnElement[bool]] = ()
    is_over: bool = False
    """Whether only what has ended is selected, so that the bounds of a step hold for final attempts as well."""


async def read_page(
    connection: AsyncConnection,
    listing: Listing[R],
    index: Index,
    *,
    limit: int,
    before: str | None = None,
    patience: float | None = None,
) -> Page[R]:
    """The newest `limit` rows below a cursor; fewer where `patience` seconds were over before as many were found."""
    await prepare(connection, "page")
    began, longest = time.monotonic(), LONGEST_STEP if patience is None else PATIENT_STEP
    walk = _Walk(listing, index, NEWEST_FIRST, longest, None if before is None else listing.place(before))
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
            if older != before:  # a step may end where it began, if it has no more rows than share a place
                page.older = older
                return page


async def read_all(database: Database, listing: Listing[R], index: Index, size: int) -> AsyncIterator[Stretch[R]]:
    """All rows, oldest first, at most `size` a stretch.

    Each is a transaction of its own: whoever writes the rows somewhere may take long, and nothing shall wait for that.
    """
    walk = _Walk(listing, index, OLDEST_FIRST, LONGEST_STEP)
    while not walk.is_over:
        async with database.reading() as connection:
            await prepare(connection, "page")
            rows = await walk.step(connection, size)
        if walk.reached is not None:
            stretch: Stretch[R] = Stretch(rows)
            stretch.until = moment_of(walk.reached)
            yield stretch


class _Walk(Generic[R]):
    """Goes through a list step by step, with longer ones where little is found. `place` is where the next one begins."""

    def __init__(
        self, listing: Listing[R], index: Index, direction: Direction, longest: int, place: Place | None = None
    ) -> None:
        self.place = place
        self.reached = place
        """Up to where it has come, at the end as well."""
        self.is_over = False
        self._listing: Listing[R] = listing
        self._index, self._direction = index, direction
        self._entries, self._longest = FIRST_STEP, longest

    async def step(self, connection: AsyncConnection, limit: int) -> list[R]:
        """The rows of the next step; where it has more, the first `limit` of them, behind which the one after it begins."""
        entries = select(self._index.place).where(*self._index.entries, *self._index.bounds, *self._reached())
        entries = entries.order_by(self._direction.orders(self._index.place))
        count = self._entries + self._is_whole  # the one that the place is at was counted before
        edge: Any = await connection.scalar(entries.offset(count - 1).limit(1))
        window = self._window(entries.limit(count), edge, connection.dialect)
        found = (await connection.execute(self._listing.first(limit, self._direction).where(*window))).all()
        self._move(found, edge, is_full=len(found) == limit)
        return [self._listing.record(row) for row in found]

    @property
    def _is_whole(self) -> bool:
        """Whether the place is one of several rows that an entry of the index may be of: some may lie behind it."""
        return self.place is not None and len(self.place) > 1

    def _reached(self) -> Iterator[ColumnElement[bool]]:
        if self.place is not None:
            reaches = self._direction.is_from if self._is_whole else self._direction.is_behind
            yield reaches(self._index.place, self.place[0])

    def _window(self, entries: Select[Any], edge: Any, dialect: Dialect) -> Iterator[ColumnElement[bool]]:
        """The rows of one step, up to its edge.

        PostgreSQL takes what lies between two ids for one row, and then compares each of one table with each of another:
        entries of a limited number keep it from that.
        """
        listing, direction, columns = self._listing, self._direction, _places(self._listing, self._index)
        for column in columns:
            if self.place is not None:
                yield direction.is_from(column, self.place[0])
            if edge is not None:
                yield direction.is_up_to(column, edge)
        if self.place is not None:
            yield listing.is_behind(self.place, direction)
        if self._index.entries or (len(columns) > 1 and dialect.name == "postgresql"):
            yield listing.order[0].in_(entries)

    def _move(self, rows: Sequence[Row[Any]], edge: Any, *, is_full: bool) -> None:
        if is_full:
            self.place = self.reached = self._listing.place_of(rows[-1])
            self._entries = max(FIRST_STEP, self._entries // GROWTH)
            return
        self.place, self.is_over = (None, True) if edge is None else ((edge,), False)
        self.reached = self.place or (self._listing.place_of(rows[-1]) if rows else None)
        self._entries = min(self._entries * GROWTH, self._longest)


def _places(listing: Listing[R], index: Index) -> Sequence[ColumnElement[Any]]:
    """The columns that a step bounds: what holds for an execution, no planner concludes for its attempt."""
    twin = last.c.execution_id if index.is_over else listing.twin
    return (listing.order[0],) if twin is None else (listing.order[0], twin)


async def _cursor(connection: AsyncConnection, listing: Listing[R], floor: Any) -> str:
    """Where to go on below the place of the last step."""
    if listing.order[0].table is not done:
        return str(floor) if len(listing.order) == 1 else f"{floor}:0"
    event = execution_events.c
    return str(await connection.scalar(select(func.min(event.id)).where(event.at == floor)))


def index_for(selection: Selection) -> Index:
    """By a rule and not by the planner, which takes rare values for frequent ones and then reads for seconds."""
    place, *entries = next(_indexes(selection), (executions.c.id,))
    return Index(place, entries, id_bounds(selection, place), is_over=_is_over(selection))


def index_for_events(selection: Selection, kind: str | None) -> Index:
    """Events are few, and in the order of their moments."""
    event = execution_events.c
    bounds = [] if selection.since is None else [event.at >= selection.since]
    bounds += [] if selection.until is None else [event.at < selection.until]
    return Index(event.at, [] if kind is None else [event.kind == clean(kind)], bounds)


def _is_over(selection: Selection) -> bool:
    told = (selection.error_code, selection.error_text, selection.min_ms, selection.max_ms)
    return selection.status in TERMINAL or any(value is not None for value in told)


def _indexes(selection: Selection) -> Iterator[tuple[ColumnElement[Any], *tuple[ColumnElement[bool], ...]]]:
    """Those that fit, the narrowest first."""
    asked, ended = executions.c, execution_attempts.c
    is_notable = ended.status != literal(ExecutionStatus.SUCCEEDED.value, literal_execute=True)
    if selection.session_id is not None:
        yield asked.id, asked.session_id == clean(selection.session_id)
    if selection.error_code is not None:
        yield ended.execution_id, ended.error_code == clean(str(selection.error_code))
    if selection.status is not None and selection.status != ExecutionStatus.SUCCEEDED:
        yield _of_status(ExecutionStatus(selection.status), is_notable)
    if selection.queue not in (None, DEFAULT_QUEUE):
        is_named = asked.queue != literal(DEFAULT_QUEUE, literal_execute=True)
        yield asked.id, asked.queue == clean(selection.queue), is_named
    if selection.error_text is not None:
        yield ended.execution_id, is_notable
    for name in ("agent_id", "tool", "category"):
        value = getattr(selection, name)
        if value is not None:
            yield asked.id, asked[name] == clean(str(value))


def _of_status(
    status: ExecutionStatus, is_notable: ColumnElement[bool]
) -> tuple[ColumnElement[Any], *tuple[ColumnElement[bool], ...]]:
    wanted = literal(status.value, literal_execute=True)
    if status not in TERMINAL:
        return execution_queue.c.id, execution_queue.c.status == wanted
    return execution_attempts.c.execution_id, execution_attempts.c.status == wanted, is_notable
