"""What was asked and what came of it: reads on the view `tool_executions`."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, case, func, select

from forge_tools.errors import ExecutionNotFoundError
from forge_tools.records import (
    Attempt,
    CallFigures,
    Event,
    ExecutionRecord,
    ExecutionStatus,
    Grouping,
    QueueDepth,
    Selection,
    StuckCalls,
)
from forge_tools.storage.engine import Database
from forge_tools.storage.figures import read_figures
from forge_tools.storage.models import (
    execution_attempts,
    execution_events,
    execution_queue,
    executions,
    from_now,
    seconds_between,
)
from forge_tools.storage.rows import is_id
from forge_tools.storage.selecting import conditions
from forge_tools.storage.stuck import find_stuck
from forge_tools.storage.view import asked, joined, tool_executions

LEAST_PREFIX = 8

seen = tool_executions.c
"""The view's columns."""


class History:
    """Executions, attempts and events as people may read them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, execution_id: str) -> ExecutionRecord:
        """One execution by its id, or by the first 8 or more characters of it.

        Raises:
            ExecutionNotFoundError: none has that id, or several begin like that.
        """
        query = select(tool_executions).where(*_id_range(execution_id)).order_by(seen.id).limit(2)
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).all()
        if not rows:
            raise ExecutionNotFoundError(f"No execution has the id {execution_id[:60]}.")
        if len(rows) > 1:
            raise ExecutionNotFoundError(
                f"Several executions begin with {execution_id}; give more characters of the id."
            )
        return _record(rows[0])

    async def attempts(self, execution_id: str) -> list[Attempt]:
        """The attempts of one execution that have ended, in order."""
        columns = execution_attempts.c
        query = select(execution_attempts).where(columns.execution_id == execution_id).order_by(columns.attempt)
        return [_attempt(row) for row in await self._rows(execution_id, query)]

    async def events(self, execution_id: str) -> list[Event]:
        """What was done to one execution, in order."""
        columns = execution_events.c
        query = select(execution_events).where(columns.execution_id == execution_id).order_by(columns.id)
        return [
            Event(at=row.at, kind=row.kind, actor=row.actor, detail=row.detail)
            for row in await self._rows(execution_id, query)
        ]

    async def figures(self, by: Grouping = Grouping.TOOL, **filters: Any) -> list[CallFigures]:
        """Calls, ends and times of what `Selection` takes, a line for each tool or whatever they are told apart by."""
        selection, by = Selection(**filters), Grouping(by)
        async with self._database.reading() as connection:
            return await read_figures(connection, selection, by)

    async def backlog(self) -> list[QueueDepth]:
        """What waits and runs now, per queue and lane."""
        live = execution_queue.c
        waiting = case((live.status == ExecutionStatus.QUEUED.value, executions.c.queued_at))
        query = (
            select(
                live.queue,
                live.lane,
                func.count(waiting).label("queued"),
                func.sum(case((live.status == ExecutionStatus.RUNNING.value, 1), else_=0)).label("running"),
                seconds_between(func.min(waiting), from_now(0.0)).label("oldest_seconds"),
            )
            .join(executions, executions.c.id == live.id)
            .group_by(live.queue, live.lane)
            .order_by(live.queue, live.lane)
        )
        async with self._database.reading() as connection:
            return [QueueDepth(**row) for row in (await connection.execute(query)).mappings()]

    async def stuck(self, *, lease: float, patience: float) -> list[StuckCalls]:
        """Calls that do not move though they should, the worst first.

        They run on a worker silent for a `lease`, or for a lease beyond their time limit; or they have been due for `patience`
        seconds while a worker that serves them has free slots, or while none of those that serve their queue hosts the tool.
        """
        async with self._database.reading() as connection:
            return await find_stuck(connection, lease=lease, patience=patience)

    async def _rows(self, execution_id: str, query: Select[Any]) -> Sequence[Row[Any]]:
        if not is_id(execution_id):
            return []
        async with self._database.reading() as connection:
            rows: Sequence[Row[Any]] = (await connection.execute(query)).all()
        return rows

    async def list(self, *, limit: int = 50, before: str | None = None, **filters: Any) -> list[ExecutionRecord]:
        """Executions that `Selection` takes, newest first; `before` is the id of the last one on the page above.

        Raises:
            ExecutionNotFoundError: `before` is no id. That execution itself need not be there any more.
            ValueError: for a filter that selects nothing anywhere, and a `limit` below 1.
        """
        if limit < 1:
            raise ValueError(f"limit is {limit}; it must be at least 1.")
        query = joined().where(*conditions(Selection(**filters)))
        if before is not None:
            if not is_id(before.lower()):
                raise ExecutionNotFoundError(f"{before[:60]!r} is no execution id; `before` takes a whole one.")
            query = query.where(asked.c.id < before.lower())
        async with self._database.reading() as connection:
            return [_record(row) for row in await connection.execute(query.order_by(asked.c.id.desc()).limit(limit))]

    async def pages(self, size: int = 500, **filters: Any) -> AsyncIterator[Sequence[ExecutionRecord]]:
        """All executions that `Selection` takes, the oldest first, a page at a time; what is queued meanwhile is left out."""
        selection = Selection(**filters)
        async with self._database.reading() as connection:
            now: datetime = (await connection.execute(select(from_now(0.0)))).scalar_one()
        selection = replace(selection, until=min(now, selection.until or now))
        query = joined().where(*conditions(selection)).order_by(asked.c.id).limit(size)
        after: list[ColumnElement[bool]] = []
        while True:
            async with self._database.reading() as connection:
                page = [_record(row) for row in await connection.execute(query.where(*after))]
            if page:
                yield page
            if len(page) < size:
                return
            after = [asked.c.id > page[-1].id]


def _id_range(prefix: str) -> list[ColumnElement[bool]]:
    """The ids that begin with `prefix`."""
    text = prefix.lower()
    low, high = (text + filler[len(text) :] for filler in _EXTREMES)
    if len(text) < LEAST_PREFIX or not is_id(low):
        raise ExecutionNotFoundError(
            f"{prefix[:60]!r} is no execution id; give the id or at least its first 8 characters."
        )
    return [seen.id >= low, seen.id <= high]


_EXTREMES = tuple("-".join(digit * length for length in (8, 4, 4, 4, 12)) for digit in "0f")


def _record(row: Row[Any]) -> ExecutionRecord:
    values = {name: getattr(row, name) for name in _RECORD_FIELDS}
    return ExecutionRecord(**values | {"status": ExecutionStatus(row.status), "metadata": row.metadata or {}})


_RECORD_FIELDS = tuple(field.name for field in fields(ExecutionRecord))


def _attempt(row: Row[Any]) -> Attempt:
    values = {field.name: getattr(row, field.name) for field in fields(Attempt)}
    return Attempt(**values | {"status": ExecutionStatus(row.status)})
