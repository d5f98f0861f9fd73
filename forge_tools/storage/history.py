"""What was asked and what came of it: reads on the view `tool_executions`."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, case, func, literal, select, tuple_

from forge_tools.errors import ExecutionNotFoundError
from forge_tools.records import Attempt, Event, ExecutionRecord, ExecutionStatus, QueueDepth, StuckCalls, ToolStats
from forge_tools.storage.engine import Database
from forge_tools.storage.models import (
    execution_attempts,
    execution_events,
    execution_queue,
    executions,
    from_now,
    seconds_between,
    tool_executions,
)
from forge_tools.storage.rows import clean, is_id
from forge_tools.storage.stuck import find_stuck

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

    async def stats(self) -> list[ToolStats]:
        """Calls and times per tool. Failed counts every end but success, rejection and cancel."""
        query = (
            select(
                seen.tool,
                func.count().label("calls"),
                _count(ExecutionStatus.SUCCEEDED).label("succeeded"),
                _count(*_FAILED).label("failed"),
                _count(ExecutionStatus.REJECTED).label("rejected"),
                func.avg(seen.duration_ms).label("mean_duration_ms"),
                func.max(seen.duration_ms).label("max_duration_ms"),
                func.avg(seconds_between(seen.queued_at, seen.started_at)).label("mean_wait_seconds"),
            )
            .group_by(seen.tool)
            .order_by(seen.tool)
        )
        async with self._database.reading() as connection:
            return [ToolStats(**row) for row in (await connection.execute(query)).mappings()]

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

    async def list(  # noqa: PLR0913 one keyword a filter
        self,
        *,
        tool: str | None = None,
        category: str | None = None,
        status: ExecutionStatus | str | None = None,
        agent_id: str | None = None,
        session_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error_code: str | None = None,
        limit: int = 50,
        before: tuple[datetime, str] | None = None,
    ) -> list[ExecutionRecord]:
        """Executions, newest first; `before` is (queued_at, id) of the last one on the page above."""
        wanted = {
            seen.tool: tool,
            seen.category: category,
            seen.status: status,
            seen.agent_id: agent_id,
            seen.session_id: session_id,
            seen.error_code: error_code,
        }
        query = select(tool_executions).order_by(seen.queued_at.desc(), seen.id.desc()).limit(limit)
        query = query.where(*(column == clean(str(value)) for column, value in wanted.items() if value is not None))
        query = query.where(*_period(since, until, before))
        async with self._database.reading() as connection:
            return [_record(row) for row in await connection.execute(query)]


_FAILED = (ExecutionStatus.FAILED, ExecutionStatus.TIMED_OUT, ExecutionStatus.EXPIRED, ExecutionStatus.LOST)


def _count(*statuses: ExecutionStatus) -> ColumnElement[int]:
    return func.sum(case((seen.status.in_([status.value for status in statuses]), 1), else_=0))


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


def _period(
    since: datetime | None, until: datetime | None, before: tuple[datetime, str] | None
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if since is not None:
        conditions.append(seen.queued_at >= since)
    if until is not None:
        conditions.append(seen.queued_at < until)
    if before is not None:
        at, id_ = literal(before[0], seen.queued_at.type), literal(before[1], seen.id.type)
        conditions.append(tuple_(seen.queued_at, seen.id) < tuple_(at, id_))
    return conditions


def _record(row: Row[Any]) -> ExecutionRecord:
    values = {name: getattr(row, name) for name in _RECORD_FIELDS}
    return ExecutionRecord(**values | {"status": ExecutionStatus(row.status), "metadata": row.metadata or {}})


_RECORD_FIELDS = tuple(field.name for field in fields(ExecutionRecord))


def _attempt(row: Row[Any]) -> Attempt:
    values = {field.name: getattr(row, field.name) for field in fields(Attempt)}
    return Attempt(**values | {"status": ExecutionStatus(row.status)})
