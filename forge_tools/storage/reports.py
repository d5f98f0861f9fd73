"""Reports of running tools: written by their workers, read by those who follow the execution."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, func, or_, select

from forge_tools.errors import ForgeError
from forge_tools.model.execution import ExecutionStatus, is_id
from forge_tools.model.history import Event, EventBatch, Note, Position, StateChange
from forge_tools.model.scope import NewReport, Output, Progress
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import from_now
from forge_tools.storage.history.view import asked, joined, live
from forge_tools.storage.queue.batcher import Batcher, Limits
from forge_tools.storage.rows import clean, record_of
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import execution_attempts, execution_events, execution_reports

MOST_READ = 256

FOLLOWED = 50
"""How many executions one read covers; everybody who follows one through this Store shares it."""

_AS_TOLD = ("number", "done", "total", "left_out", "stream", "level")
"""Columns stored as reported; a text is made storable first."""

told = execution_reports.c
ended, event = execution_attempts.c, execution_events.c


class Reports:
    """Reports of attempts. Reports for an attempt that its worker no longer owns are dropped."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._polls: Batcher[Position, EventBatch] = Batcher(self._poll, Limits(rows=FOLLOWED))

    async def add(self, reports: Sequence[NewReport]) -> None:
        """Write reports in one transaction; writing them again changes nothing."""
        if reports:
            await self._database.write(lambda connection: self._add(connection, reports))

    async def poll(self, position: Position) -> EventBatch:
        """Read what came after a position; everybody who asks meanwhile shares the next statements."""
        self._database.guard()
        if not is_id(position.execution_id):
            return EventBatch(state=None, heard=(), position=position)
        return await self._polls.add(position)

    async def progress_of(self, ids: Collection[str]) -> Mapping[str, Progress]:
        """Return the newest progress of those executions that have reported any."""
        known = [id_ for id_ in ids if is_id(id_)]
        if not known:
            return {}
        query = (
            select(execution_reports).where(told.execution_id.in_(known), told.slot == 0).order_by(told.attempt.asc())
        )
        rows = await self._database.rows(query)
        return {row.execution_id: _progress(row, "") for row in rows}  # a later attempt replaces an earlier one

    async def close(self) -> None:
        await self._polls.close()

    async def _add(self, connection: AsyncConnection, reports: Sequence[NewReport]) -> None:
        ids = sorted({report.execution_id for report in reports})
        owned = await connection.execute(select(live.c.id, live.c.token).where(live.c.id.in_(ids)))
        tokens = dict(owned.all())
        values = {
            (report.execution_id, report.attempt, _slot(report)): _values(report)
            for report in reports
            if tokens.get(report.execution_id) == report.token
        }
        if not values:
            return
        row = self._database.upsert(execution_reports)
        news = {name: row.excluded[name] for name in ("at", "text", *_AS_TOLD)}
        statement = row.values(at=from_now(0.0)).on_conflict_do_update(
            index_elements=["execution_id", "attempt", "slot"], set_=news, where=row.excluded.number > told.number
        )
        await connection.execute(statement, [values[key] for key in sorted(values)])

    async def _poll(self, positions: Sequence[Position]) -> list[EventBatch | ForgeError]:
        """Read states first: reports are written before an execution ends, so if it has, all of them are there."""
        async with self._database.reading() as connection:
            states = await _states(connection, [position.execution_id for position in positions])
            rows = await _behind(connection, positions)
            behind = [one for one in positions if one.execution_id in states and states[one.execution_id][1] > one.note]
            notes = await _notes(connection, behind)
        is_full = len(rows) == MOST_READ
        of = {id_: list(group) for id_, group in groupby(rows, key=lambda row: row.execution_id)}
        return [
            _batch(one, states.get(one.execution_id), of.get(one.execution_id, []), notes, is_full=is_full)
            for one in positions
        ]


async def _states(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, tuple[StateChange, int]]:
    """Return the state of each execution, with the number of its newest event."""
    newest = select(func.max(event.id)).where(event.execution_id == asked.c.id).scalar_subquery()
    failed = (ended.execution_id == asked.c.id, ended.attempt == live.c.attempt)
    why = select(ended.error).where(*failed).scalar_subquery()
    query: Select[Any] = joined().where(asked.c.id.in_(ids))
    state: list[ColumnElement[Any]] = [
        query.selected_columns[name] for name in ("id", "status", "attempt", "hostname", "not_before")
    ]
    query = query.with_only_columns(*state, newest.label("note"), why.label("reason"), maintain_column_froms=True)
    rows = (await connection.execute(query)).all()
    return {row.id: (_state(row), row.note or 0) for row in rows if row.status is not None}


def _state(row: Any) -> StateChange:
    is_retry = row.status == ExecutionStatus.QUEUED and row.attempt > 0
    return StateChange(
        status=ExecutionStatus(row.status),
        attempt=row.attempt,
        hostname=row.hostname,
        reason=row.reason if is_retry else None,
        due_at=row.not_before if is_retry else None,
    )


async def _behind(connection: AsyncConnection, positions: Iterable[Position]) -> Sequence[Row[Any]]:
    query = (
        select(execution_reports)
        .where(or_(*map(_is_behind, positions)))
        .order_by(told.execution_id, told.attempt, told.number)
        .limit(MOST_READ)
    )
    return (await connection.execute(query)).all()


def _is_behind(position: Position) -> ColumnElement[bool]:
    """Make each part a range of the key, so that a call with many reports is not read from its beginning."""
    of_it = told.execution_id == position.execution_id
    of_attempt = of_it & (told.attempt == position.attempt)
    return or_(
        of_attempt & (told.slot > position.number),
        of_attempt & (told.slot == 0) & (told.number > position.number),
        of_it & (told.attempt > position.attempt),
    )


async def _notes(connection: AsyncConnection, positions: Sequence[Position]) -> dict[str, list[tuple[int, Event]]]:
    found: dict[str, list[tuple[int, Event]]] = {}
    if not positions:
        return found
    behind = [and_(event.execution_id == one.execution_id, event.id > one.note) for one in positions]
    for row in (await connection.execute(select(execution_events).where(or_(*behind)).order_by(event.id))).all():
        found.setdefault(row.execution_id, []).append((row.id, record_of(Event, row)))
    return found


def _batch(
    position: Position,
    state: tuple[StateChange, int] | None,
    rows: Sequence[Row[Any]],
    notes: Mapping[str, Sequence[tuple[int, Event]]],
    *,
    is_full: bool,
) -> EventBatch:
    heard: list[Note | Progress | Output] = []
    for number, noted in notes.get(position.execution_id, ()):
        position = replace(position, note=number)
        heard.append(Note(event=noted, cursor=position.cursor))
    for row in rows:
        position = replace(position, attempt=row.attempt, number=row.number)
        heard.append(
            _progress(row, position.cursor)
            if row.slot == 0
            else record_of(Output, row, text=row.text or "", cursor=position.cursor)
        )
    return EventBatch(state=state[0] if state else None, heard=tuple(heard), position=position, has_more=is_full)


def _progress(row: Row[Any], cursor: str) -> Progress:
    return Progress(done=row.done, total=row.total, message=row.text, attempt=row.attempt, at=row.at, cursor=cursor)


def _slot(report: NewReport) -> int:
    return 0 if report.told.done is not None else report.told.number


def _values(report: NewReport) -> dict[str, object]:
    told = {name: getattr(report.told, name) for name in _AS_TOLD}
    key = {"execution_id": report.execution_id, "attempt": report.attempt, "slot": _slot(report)}
    return {**key, **told, "text": clean(report.told.text)}
