"""Executions, attempts and events as people read them, from the view `tool_executions`."""

import builtins
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, select, text

from forge_tools.errors import ExecutionNotFoundError
from forge_tools.model.execution import ExecutionStatus, is_id
from forge_tools.model.history import Attempt, AttemptRecord, Event, EventRecord, ExecutionRecord, Grouping, Selection
from forge_tools.model.overview import CallFigures
from forge_tools.storage.connection.database import Database
from forge_tools.storage.connection.drivers import Address
from forge_tools.storage.connection.faults import require_usable
from forge_tools.storage.functions import from_now
from forge_tools.storage.history.figures import read_figures
from forge_tools.storage.history.pages import (
    Listing,
    Page,
    R,
    Stretch,
    attempts_listed,
    events_listed,
    execution_record,
    executions_listed,
    read_all,
    read_page,
)
from forge_tools.storage.history.view import conditions, joined, live, tool_executions
from forge_tools.storage.rows import record_of
from forge_tools.storage.sqlalchemy_tables import execution_attempts, execution_events

LEAST_PREFIX = 8

_EXTREMES = tuple("-".join(digit * length for length in (8, 4, 4, 4, 12)) for digit in "0f")
"""The lowest and the highest possible id."""

seen = tool_executions.c


@asynccontextmanager
async def open_history(url: str, *, connect_timeout: float = 3.0) -> AsyncIterator["History"]:
    """Open only the history: a store has more parts to load. Raises what `open_store` raises."""
    address = Address.parse(url)
    address.require_file()
    database = Database(address, connect_timeout=connect_timeout)
    try:
        require_usable(address.shown, await database.scalar(text("SELECT version_num FROM alembic_version")))
        yield History(database)
    finally:
        await database.close()


class History:
    """Reads history and changes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, execution_id: str) -> ExecutionRecord:
        """Return one execution by its id, or by the first 8 or more characters of it.

        Raises:
            ExecutionNotFoundError: none has that id, or several begin with it.
        """
        query = select(tool_executions).where(*_id_range(execution_id)).order_by(seen.id).limit(2)
        rows = await self._database.rows(query)
        if not rows:
            raise ExecutionNotFoundError(f"No execution has the id {execution_id[:60]}.")
        if len({row.id for row in rows}) > 1:  # after a careless restore, one may have two last attempts
            raise ExecutionNotFoundError(
                f"Several executions begin with {execution_id}; give more characters of the id."
            )
        return execution_record(rows[0])

    async def attempts(self, execution_id: str) -> builtins.list[Attempt]:
        """Return the ended attempts of one execution, in order."""
        columns = execution_attempts.c
        query = select(execution_attempts).where(columns.execution_id == execution_id).order_by(columns.attempt)
        rows = await self._rows(execution_id, query)
        return [record_of(Attempt, row, status=ExecutionStatus(row.status)) for row in rows]

    async def events(self, execution_id: str) -> builtins.list[Event]:
        """Return what happened to one execution, in order."""
        columns = execution_events.c
        query = select(execution_events).where(columns.execution_id == execution_id).order_by(columns.id)
        return [record_of(Event, row) for row in await self._rows(execution_id, query)]

    async def figures(
        self, by: Grouping = Grouping.TOOL, *, from_rows: bool = False, **filters: Any
    ) -> builtins.list[CallFigures]:
        """Count the calls that a `Selection` matches, their outcomes and times, with a line for each tool or other key.

        Whole hours are taken from their roll-ups; with `from_rows` every call is read.
        """
        selection, by = Selection.of(filters), Grouping(by)
        async with self._database.reading(is_long=True) as connection:
            return await read_figures(connection, selection, by, from_rows=from_rows)

    async def list_attempts(
        self, *, limit: int = 50, before: str | None = None, patience: float | None = None, **filters: Any
    ) -> Page[AttemptRecord]:
        """List attempts of all executions, those queued last first; `before` is the `cursor` of the last one above.

        `status`, `error_code`, `error_text`, `min_ms` and `max_ms` apply to the attempt, other filters to its
        execution.

        Raises what `list` does, and ValueError for a status that no attempt has.
        """
        return await self._page(attempts_listed(Selection.of(filters)), limit=limit, before=before, patience=patience)

    async def list_events(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        patience: float | None = None,
        kind: str | None = None,
        **filters: Any,
    ) -> Page[EventRecord]:
        """List events of all executions, newest first; `before` is the `cursor` of the last one above.

        `since` and `until` bound when they happened; the other filters apply to their execution. Raises what `list` does.
        """
        listing = events_listed(Selection.of(filters), kind)
        return await self._page(listing, limit=limit, before=before, patience=patience)

    async def _page(self, listing: Listing[R], *, limit: int, **how: Any) -> Page[R]:
        if limit < 1:
            raise ValueError(f"limit is {limit}; it must be at least 1.")
        async with self._database.reading() as connection:
            return await read_page(connection, listing, limit=limit, **how)

    async def _rows(self, execution_id: str, query: Select[Any]) -> Sequence[Row[Any]]:
        return await self._database.rows(query) if is_id(execution_id) else []

    async def list(
        self, *, limit: int = 50, before: str | None = None, patience: float | None = None, **filters: Any
    ) -> Page[ExecutionRecord]:
        """List executions that a `Selection` matches, newest first; `before` is the id of the previous page's last one.

        A page has fewer than `limit` at the end of history, or when `patience` runs out: then its `older` is the
        `before` with which to look further back.

        Raises:
            ExecutionNotFoundError: `before` is not a cursor. The row that it names may be gone.
            ValueError: for a filter that can match nothing, and a `limit` below 1.
        """
        return await self._page(executions_listed(Selection.of(filters)), limit=limit, before=before, patience=patience)

    async def unfinished(self, **filters: Any) -> Sequence[str]:
        """Return the ids of all executions that a `Selection` matches and that are not over, the oldest first."""
        selected = joined().where(live.c.id.is_not(None), *conditions(Selection.of(filters)))
        return await self._database.scalars(selected.with_only_columns(live.c.id).order_by(live.c.id))

    def pages(self, size: int = 500, **filters: Any) -> AsyncIterator[Stretch[ExecutionRecord]]:
        """Yield all executions that a `Selection` matches, the oldest first; those queued meanwhile are left out.

        They come in stretches of at most `size`. Each, even an empty one, says how far the search has come.
        """
        return self._all(size, filters, executions_listed)

    def attempt_pages(self, size: int = 500, **filters: Any) -> AsyncIterator[Stretch[AttemptRecord]]:
        """Yield all attempts that `list_attempts` finds, oldest first, without those of executions queued meanwhile."""
        return self._all(size, filters, attempts_listed)

    def event_pages(
        self, size: int = 500, kind: str | None = None, **filters: Any
    ) -> AsyncIterator[Stretch[EventRecord]]:
        """Yield all events that `list_events` finds, the oldest first; those that happen meanwhile are left out."""
        return self._all(size, filters, partial(events_listed, kind=kind))

    async def _all(
        self, size: int, filters: Mapping[str, Any], listed: Callable[[Selection], Listing[R]]
    ) -> AsyncIterator[Stretch[R]]:
        if size < 1:
            raise ValueError(f"size is {size}; it must be at least 1.")
        now: datetime = await self._database.scalar(select(from_now(0.0)))
        selection = Selection.of(filters)
        listing = listed(replace(selection, until=min(now, selection.until or now)))
        async for stretch in read_all(self._database, listing, size):
            yield stretch


def _id_range(prefix: str) -> list[ColumnElement[bool]]:
    given = prefix.lower()
    low, high = (given + filler[len(given) :] for filler in _EXTREMES)
    if len(given) < LEAST_PREFIX or not is_id(low):
        raise ExecutionNotFoundError(
            f"{prefix[:60]!r} is not an execution id. Give the id, a unique beginning or end of it, @last, or @-2 for the one before."
        )
    return [seen.id >= low, seen.id <= high]
