"""Reads a page of history step by step, each of them over so many rows of one index: no statement reads all there is."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from sqlalchemy import ColumnElement, Select, func, literal, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import TERMINAL, ExecutionStatus, Selection
from forge_tools.storage.listing import Listing, R, done
from forge_tools.storage.models import DEFAULT_QUEUE, execution_attempts, execution_events, execution_queue, executions
from forge_tools.storage.rows import clean
from forge_tools.storage.selecting import id_bounds
from forge_tools.storage.view import last

FIRST_STEP, GROWTH, LONGEST_STEP = 500, 4, 32_000
"""Entries that a step looks at: few at first, since most pages are full with them, and never more than a statement can."""

PATIENT_STEP = 2_000
"""The most where time is short: the last step begins before it is over."""


class Page(list[R], Generic[R]):
    """Rows, newest first. `older` is what `before` takes to go on behind the last that was looked at; None at the end."""

    older: str | None = None


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
    if connection.dialect.name == "postgresql":
        # As on SQLite, all statements see one moment: what comes between two would push other rows out of a step.
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        # A plan for any cursor would be made for the middle of history, and for values as frequent as others are.
        await connection.execute(text("SET LOCAL plan_cache_mode = force_custom_plan"))
    began, longest = time.monotonic(), LONGEST_STEP if patience is None else PATIENT_STEP
    step: int = FIRST_STEP
    page: Page[R] = Page()
    top: list[ColumnElement[bool]] = []
    reached = [] if before is None else [index.place <= listing.place(before)[0]]
    while True:
        entries: Select[Any] = (
            select(index.place).where(*index.entries, *index.bounds, *reached).order_by(index.place.desc())
        )
        floor: Any = await connection.scalar(entries.offset(step - 1).limit(1))
        window = (*top, *_window(listing, index, entries.limit(step), floor))
        rows = await connection.execute(listing.newest(limit - len(page), before).where(*window))
        page += [listing.record(row) for row in rows]
        if len(page) == limit:
            page.older = page[-1].cursor
            return page
        if floor is None or (patience is not None and time.monotonic() - began >= patience):
            page.older = None if floor is None else await _cursor(connection, listing, floor)
            return page
        top, reached = [column < floor for column in _places(listing, index)], [index.place < floor]
        step = min(step * GROWTH, longest)


def _window(listing: Listing[R], index: Index, entries: Select[Any], floor: Any) -> Iterator[ColumnElement[bool]]:
    """The rows of one step from below. A limit tells the planner how few they are, whatever it believes."""
    if floor is not None:
        yield from (column >= floor for column in _places(listing, index))
    if index.entries:
        yield listing.order[0].in_(entries)


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
