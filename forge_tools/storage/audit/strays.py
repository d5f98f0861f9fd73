"""Rows that no batch holds: what waits for its seal, and what cannot be there by right."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Row, Select, and_, exists, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records.audit import AuditReport, Fault
from forge_tools.storage.audit.canonical import EPOCH, moment_of
from forge_tools.storage.audit.chain import Batch
from forge_tools.storage.audit.sealing import event_floor
from forge_tools.storage.functions import database_now, stored
from forge_tools.storage.heartbeat import EVER, OVERLAP
from forge_tools.storage.models import (
    audit_batches,
    audit_events,
    audit_executions,
    execution_attempts,
    execution_events,
    execution_queue,
    executions,
)

_PAGE = 10_000

asked, ended, event = executions.c, execution_attempts.c, execution_events.c
entry, event_entry = audit_executions.c, audit_events.c
_SETTLED = timedelta(minutes=2)
"""After so long a call is over or in the queue, whatever its submitter's clock says."""


class Note(Protocol):
    """Takes a finding."""

    def __call__(self, fault: Fault, table: str, key: object, said: str, batch: int | None = None) -> None: ...


class Strays:
    """Looks through each table by its key for rows without an entry, and for entries without a batch."""

    def __init__(self, connection: AsyncConnection, report: AuditReport, note: Note) -> None:
        self._connection = connection
        self._report = report
        self._note = note

    async def look(self, last: Batch | None, *, is_signed: bool) -> None:
        """`last` is the newest batch from before the chain was read: who sealed meanwhile is no forger.

        If it `is_signed`, there has to be one.
        """
        now = await database_now(self._connection)
        frontier = last.frontier if last else None
        since = frontier and max(EVER, min(frontier, now)) - OVERLAP
        async for row in self._pages(_unsealed_executions, asked.id):
            if row.completed_at is None:
                self._note_unfinished(row, now - _SETTLED)
            else:
                self._note_unsealed(row, moment_of(row.completed_at), since)
        async for row in self._pages(_orphaned_attempts, ended.execution_id):
            self._note(Fault.INSERTED, "execution_attempts", row.key, "there is no such execution")
        async for row in self._pages(_over_and_waiting, execution_queue.c.id):
            self._note(Fault.INSERTED, "execution_queue", row.key, "it is over and sealed, and in the queue again")
        floor = await event_floor(self._connection, last)
        async for row in self._pages(_unsealed_events, event.id):
            if row.key <= floor:
                self._note(Fault.INSERTED, "execution_events", row.key, "later ones are sealed, and no batch has it")
        for table, key in ((entry, entry.execution_id), (event_entry, event_entry.event_id)):
            async for row in self._pages(partial(_without_batch, table, key), key):
                self._note(Fault.INSERTED, str(key.table), row.key, f"there is no batch {row.batch}")
        oldest = self._report.oldest_unsealed
        if is_signed and last is None and oldest is not None and oldest < now - _SETTLED:
            self._note(Fault.UNSIGNED, "audit_batches", 1, "there is no batch at all, and a key was given")

    def _note_unsealed(self, row: Row[Any], ended_at: datetime | None, since: datetime | None) -> None:
        if ended_at is None or (since is not None and ended_at < since):
            said = f"it says it ended at {str(row.completed_at)[:19]}, before the last seal, and no batch has it"
            self._note(Fault.INSERTED, "executions", row.key, said)
        else:
            self._report.unsealed += 1
            self._report.oldest_unsealed = min(self._report.oldest_unsealed or ended_at, ended_at)

    def _note_unfinished(self, row: Row[Any], before: datetime) -> None:
        if (moment_of(row.queued_at) or EPOCH) < before:
            self._note(Fault.UNFINISHED, "executions", row.key, "it has not ended, and is not in the queue")

    async def _pages(self, query: Callable[[], Select[Any]], key: ColumnElement[Any]) -> AsyncIterator[Row[Any]]:
        """What `query` finds, so many keys at a time: where it finds nothing, no statement reads the whole table."""
        keys, found = select(key.label("key")).order_by(key).limit(_PAGE), query().order_by(key)
        reach = None
        while True:
            page, before = keys.subquery(), reach
            reach = await self._connection.scalar(select(page.c.key).order_by(page.c.key.desc()).limit(1))
            if reach is None:
                return
            if reach == before:  # what is no UTF-8 is read as another text, and lies behind that for ever
                reach = None
            for row in await self._connection.execute(found if reach is None else found.where(key <= reach)):
                yield row
            if reach is None:
                return
            keys = select(key.label("key")).where(key > reach).order_by(key).limit(_PAGE)
            found = query().where(key > reach).order_by(key)


def _unsealed_executions() -> Select[Any]:
    sealed = exists().where(entry.execution_id == asked.id)
    waits = (
        select(execution_queue.c.id).where(execution_queue.c.id == asked.id).exists()
    )  # an auditor may not read all of it
    last = and_(ended.execution_id == asked.id, ended.final)
    is_over = ended.execution_id.is_not(None)  # and in the queue all the same: no statement of ours leaves it so
    query = select(
        asked.id.label("key"),
        stored(asked.queued_at).label("queued_at"),
        stored(ended.completed_at).label("completed_at"),
    )
    return query.select_from(executions.outerjoin(execution_attempts, last)).where(~sealed, ~waits | is_over)


def _orphaned_attempts() -> Select[Any]:
    owned = exists().where(asked.id == ended.execution_id)
    sealed = exists().where(entry.execution_id == ended.execution_id)
    return select(ended.execution_id.label("key")).where(~owned, ~sealed)


def _over_and_waiting() -> Select[Any]:
    sealed = exists().where(entry.execution_id == execution_queue.c.id, entry.pruned_by.is_(None))
    return select(execution_queue.c.id.label("key")).where(sealed)


def _unsealed_events() -> Select[Any]:
    return select(event.id.label("key")).where(~exists().where(event_entry.event_id == event.id))


def _without_batch(table: Any, key: ColumnElement[Any]) -> Select[Any]:
    return select(key.label("key"), table.batch).where(~exists().where(audit_batches.c.sequence == table.batch))
