"""Deletes what is old enough, in small transactions: ended executions and leftovers of hosts and sessions."""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Column, ColumnElement, Row, delete, exists, func, insert, or_, select, update

from forge_tools.errors import ConfigurationError
from forge_tools.model.audit import Pruned, Pruning
from forge_tools.model.execution import id_floor
from forge_tools.model.places import ShellStatus
from forge_tools.storage.artifacts import disown
from forge_tools.storage.audit import Signer, batches
from forge_tools.storage.audit.batches import PRUNE, Batch, OvertakenError, Portion
from forge_tools.storage.audit.hashes import line, root_of
from forge_tools.storage.connection.database import Database
from forge_tools.storage.documents import is_replaced
from forge_tools.storage.functions import any_of, database_now, from_now, seconds_between, stored
from forge_tools.storage.history.rollups import unroll
from forge_tools.storage.rows import MAX_SKEW, clean
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import (
    artifact_owners,
    audit_events,
    audit_executions,
    documents,
    execution_attempts,
    execution_events,
    execution_queue,
    execution_reports,
    executions,
    idempotency_keys,
    session_workspaces,
    shells,
    workers,
    workspaces,
)
from forge_tools.storage.workspaces import KEPT_SECONDS

KIND = "prune"
LOOKED_AT = 5_000
"""How many executions one step examines at most, so that no statement reads the whole table if few match."""

AT_ONCE = {"sqlite": 100, "postgresql": 1_000}
"""How many executions a transaction deletes. On SQLite other writers of the file wait for it; on PostgreSQL nobody does."""

BUSY_REST, IDLE_REST, LONGEST_REST = 12.0, 0.5, 10.0
"""How many times as long as its last transaction a prune rests: while calls run, so that it takes a thirteenth of the
time, and while none do. And the longest rest, in seconds.
"""

OVERTAKEN_REST = 0.02
_BEGINNING = "00000000-0000-0000-0000-000000000000"

INSTANCE_SECONDS = 365 * 86_400.0
"""After that, a worker instance is deleted even if it may have run attempts that remain, so restarts do not pile up."""

BOUND_SECONDS = 90 * 86_400.0
"""How long a session keeps its workspace once none of its calls is kept."""

SESSION_SECONDS = 90 * 86_400.0
"""How long the documents of a session stay after the last write."""

DELETED_SECONDS = 30 * 86_400.0
"""How long deleted documents and replaced versions stay at most."""

ENDING_SECONDS = 86_400.0

LEFTOVERS_AT_ONCE = 500
"""How many rows of leftovers a transaction deletes, roughly."""

PAUSE_SECONDS = 0.1

asked, last = executions.c, execution_attempts.c


@dataclass(frozen=True, slots=True)
class PruneRun:
    """One run: the id under which its events are kept, who asked for it, and the key that signs its checkpoints."""

    id: str
    actor: str
    signer: Signer | None = None


@dataclass(frozen=True, slots=True)
class _Entries:
    """What the audit chain has of the executions that one transaction deletes."""

    head: Batch | None
    executions: Sequence[Row[Any, Any, Any]]
    events: Sequence[Row[Any, Any, Any]]


class Retention:
    """Prunes executions that have ended. It never touches others, whatever the request."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count(self, what: Pruning) -> int:
        async with self._database.reading(is_long=True) as connection:
            return await connection.scalar(select(func.count()).select_from(_matching(what).subquery())) or 0

    async def sweep(self, what: Pruning, run: PruneRun, *, most: int | None = None) -> AsyncIterator[Pruned]:
        """Prune all that matches, `most` per transaction, with rests; yields after each. If stopped, it may be run again."""
        gone, most = Pruned(), most or AT_ONCE[self._database.dialect]
        while True:
            try:
                gone = await self.prune(what, run, after=gone.last, most=most)
            except OvertakenError:
                await asyncio.sleep(OVERTAKEN_REST)
                continue
            if gone.last is None:
                return
            yield gone
            await asyncio.sleep(rest_after(gone))

    async def prune(self, what: Pruning, run: PruneRun, *, after: str | None = None, most: int = 1000) -> Pruned:
        """Delete up to `most` of what matches, in one transaction; the returned `last` is None at the end.

        If there is an audit chain, a checkpoint in it says what was deleted, and why.

        Raises:
            ConfigurationError: the chain is signed, and the run has no key.
            OvertakenError: another process added to the chain at the same time; nothing was deleted.
        """
        began = time.monotonic()
        # Read before the transaction that deletes, so that it is short: what has ended stays as it is.
        async with self._database.reading() as connection:
            reach = await _reach(connection, what, after)
            if reach is None:
                return Pruned()
            within = (asked.id > (after or _BEGINNING), asked.id <= reach)
            found = (await connection.execute(_matching(what).where(*within).order_by(asked.id).limit(most))).all()
            ids = [row.id for row in found]
            entries = await _entries(connection, ids)
            is_busy = await connection.scalar(select(execution_queue.c.id).limit(1)) is not None
            now = await database_now(connection)
        end = ids[-1] if len(ids) == most else reach
        if not ids:
            return Pruned(last=end, is_busy=is_busy)
        said = _said(what, run, ids)
        checkpoint = _checkpoint(entries, run, now, said, len(ids))

        async def work(connection: AsyncConnection) -> Pruned:
            await unroll(self._database, connection, (row.queued_at for row in found))
            if checkpoint is None:
                await batches.require_none(connection)
            else:
                await batches.append(self._database, connection, checkpoint)
                await _mark(connection, entries, checkpoint.sequence)
            gone = await _delete(connection, ids)
            if gone.executions:
                counts = {"executions": gone.executions, "attempts": gone.attempts, "events": gone.events}
                of_run = {"execution_id": run.id, "kind": KIND, "actor": clean(run.actor), "detail": said | counts}
                await connection.execute(insert(execution_events).values(at=from_now(0.0), **of_run))
            return gone

        gone = await self._database.write(work)
        return replace(gone, last=end, seconds=time.monotonic() - began, is_busy=is_busy)


def rest_after(gone: Pruned) -> float:
    """Return how many seconds to rest after a transaction, so that others hardly notice."""
    return min(LONGEST_REST, gone.seconds * (BUSY_REST if gone.is_busy else IDLE_REST))


async def _reach(connection: AsyncConnection, what: Pruning, after: str | None) -> str | None:
    """Return the last id of the next few thousand that may be old enough."""
    newest = id_floor(max(0.0, what.ended_before.timestamp() + MAX_SKEW))
    following = select(asked.id).where(asked.id > (after or _BEGINNING), asked.id < newest)
    found = following.order_by(asked.id).limit(LOOKED_AT).subquery()
    reach: str | None = await connection.scalar(select(found.c.id).order_by(found.c.id.desc()).limit(1))
    return reach


def _matching(what: Pruning) -> Any:
    is_live = select(execution_queue.c.id).where(execution_queue.c.id == asked.id).exists()
    query = select(asked.id, asked.queued_at).join(execution_attempts, (last.execution_id == asked.id) & last.final)
    for column, value in ((asked.tool, what.tool), (asked.category, what.category), (last.status, what.status)):
        if value is not None:
            query = query.where(column == clean(value))
    if what.keep:
        query = query.where(last.status.not_in(what.keep))
    return query.where(last.completed_at < what.ended_before, ~is_live)


async def _entries(connection: AsyncConnection, ids: Sequence[str]) -> _Entries:
    entry, event = audit_executions.c, audit_events.c
    executions_ = select(entry.execution_id.label("key"), entry.batch, stored(entry.hashes).label("hashes"))
    events = select(event.event_id.label("key"), event.batch, stored(event.hashes).label("hashes")).join(
        execution_events, execution_events.c.id == event.event_id
    )
    theirs = any_of(execution_events.c.execution_id, ids)
    return _Entries(
        await batches.newest(connection),
        (await connection.execute(executions_.where(any_of(entry.execution_id, ids), entry.pruned_by.is_(None)))).all(),
        (await connection.execute(events.where(theirs, event.pruned_by.is_(None)))).all(),
    )


def _checkpoint(entries: _Entries, run: PruneRun, now: Any, said: dict[str, Any], count: int) -> Batch | None:
    head = entries.head
    if head is None:
        return None
    if head.key_id is not None and run.signer is None:
        raise ConfigurationError(
            "The audit chain is signed, so checkpoints of pruned rows must be signed too: set FORGE_AUDIT_KEY to the "
            "private key of the workers."
        )
    portions = _portions(entries)
    detail = {"executions": count, "unsealed": count - len(entries.executions), "pruned": portions}
    return Batch(
        sequence=head.sequence + 1,
        kind=PRUNE,
        frontier=head.frontier,
        event_frontier=head.event_frontier,
        root=root_of([f"{portion.batch} {portion.root}\n" for portion in portions]),
        previous=head.hash,
        sealed_at=now,
        sealer=clean(run.actor),
        detail=json.dumps(said | detail),
    ).signed(run.signer)


def _portions(entries: _Entries) -> list[Portion]:
    lines: dict[int, list[str]] = defaultdict(list)
    for kind, rows in (("execution", entries.executions), ("event", entries.events)):
        for row in rows:
            lines[row.batch].append(line(kind, row.key, row.hashes))
    executions, events = (Counter(row.batch for row in rows) for rows in (entries.executions, entries.events))
    return [Portion(batch, executions[batch], events[batch], root_of(lines[batch])) for batch in sorted(lines)]


def _said(what: Pruning, run: PruneRun, ids: Sequence[str]) -> dict[str, Any]:
    filters = {name: value for name, value in asdict(what).items() if value} | {"ended_before": str(what.ended_before)}
    return {"run": run.id, "filters": filters, "first": ids[0], "last": ids[-1]}


async def _mark(connection: AsyncConnection, entries: _Entries, checkpoint: int) -> None:
    """Mark entries with the checkpoint that removed them; a batch's entries are deleted with its last covered row."""
    for table, rows in ((audit_executions, entries.executions), (audit_events, entries.events)):
        key, *_ = table.primary_key.columns
        marked = update(table).where(any_of(key, [row.key for row in rows])).values(pruned_by=checkpoint)
        await connection.execute(marked)
    touched = {row.batch for row in (*entries.executions, *entries.events)}
    kept = set[int]()
    for table in (audit_executions, audit_events):
        left = select(table.c.batch).where(any_of(table.c.batch, touched), table.c.pruned_by.is_(None)).distinct()
        kept.update((await connection.scalars(left)).all())
    for table in (audit_executions, audit_events):
        await connection.execute(delete(table).where(any_of(table.c.batch, touched - kept)))


async def _delete(connection: AsyncConnection, ids: Sequence[str]) -> Pruned:
    theirs = any_of(artifact_owners.c.execution_id, ids)
    held = select(artifact_owners.c.artifact_id).where(theirs).distinct()
    if artifacts := (await connection.scalars(held)).all():
        await disown(artifacts, theirs, connection)
    for table in (idempotency_keys, execution_reports):
        await connection.execute(delete(table).where(any_of(table.c.execution_id, ids)))
    events = await connection.execute(delete(execution_events).where(any_of(execution_events.c.execution_id, ids)))
    attempts = await connection.execute(delete(execution_attempts).where(any_of(last.execution_id, ids)))
    gone = await connection.execute(delete(executions).where(any_of(asked.id, ids)))
    return Pruned(gone.rowcount, attempts.rowcount, events.rowcount)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Rows of one table that are deleted once they meet a condition, with the rows that name them."""

    key: Column[str]
    is_over: ColumnElement[bool]
    named_by: Column[str] | None = None


class Leftovers:
    """Deletes rows of worker instances, shells, bindings and documents that nobody needs and that cannot be alive."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def clear(self, *, shells_kept: float = 0.0) -> int:
        """Delete everything that is due, in small transactions; returns how many rows were deleted.

        `shells_kept` is for how many seconds hosts keep the output of ended shells: their rows stay at least as long.
        """
        count = 0
        for kind in _kinds(shells_kept):
            counted = select(kind.key, func.count()).where(kind.is_over).group_by(kind.key)
            async with self._database.reading(is_long=True) as connection:
                found = (await connection.execute(counted)).all()
            for keys in _in_groups(found):
                count += await self._delete(kind, keys)
                await asyncio.sleep(PAUSE_SECONDS)
        return count

    async def _delete(self, kind: _Kind, keys: Sequence[str]) -> int:
        going = delete(kind.key.table).where(kind.key.in_(keys), kind.is_over).returning(kind.key)

        async def work(connection: AsyncConnection) -> int:
            gone = (await connection.scalars(going)).all()
            if kind.named_by is not None:
                await connection.execute(delete(kind.named_by.table).where(kind.named_by.in_(gone)))
            return len(gone)

        return await self._database.write(work)


def _in_groups(counted: Iterable[Row[str, int]]) -> Iterator[list[str]]:
    """Group keys so that a group has few rows: a session may have thousands of documents."""
    keys, rows = list[str](), 0
    for key, count in counted:
        keys.append(key)
        rows += count
        if rows >= LEFTOVERS_AT_ONCE:
            yield keys
            keys, rows = [], 0
    if keys:
        yield keys


def _kinds(shells_kept: float) -> Iterator[_Kind]:
    owners = select(execution_queue.c.owner).where(execution_queue.c.owner.is_not(None))
    worker, shell, bound = workers.c, shells.c, session_workspaces.c
    # One not marked as stopped may only be suspended, as may all that could find it dead: they must do so first.
    has_stopped = (worker.stopped_at < from_now(-KEPT_SECONDS)) & (worker.last_seen_at < from_now(-KEPT_SECONDS))
    oldest = select(func.coalesce(func.min(execution_attempts.c.completed_at), from_now(0.0))).scalar_subquery()
    # No index says who ran what, but nothing is kept from its time. What it left may have ended some time after it.
    is_needless = or_(
        seconds_between(worker.stopped_at, oldest) > ENDING_SECONDS, worker.stopped_at < from_now(-INSTANCE_SECONDS)
    )
    yield _Kind(worker.id, has_stopped & is_needless & worker.id.not_in(owners), named_by=workspaces.c.instance)
    has_ended = shell.status != ShellStatus.RUNNING.value
    yield _Kind(shell.id, has_ended & (shell.updated_at < from_now(-max(KEPT_SECONDS, shells_kept))))
    document, other = documents.c, documents.alias("of_the_session").c
    is_in_use = exists().where(
        other.scope == document.scope,
        other.owner_key == document.owner_key,
        other.updated_at > from_now(-SESSION_SECONDS),
    )
    is_past = (document.updated_at < from_now(-DELETED_SECONDS)) & (document.content.is_(None) | is_replaced)
    yield _Kind(document.owner_key, is_past | ((document.scope == "session") & ~is_in_use))
    # Without its binding, a session that continues would silently work elsewhere.
    has_calls = exists().where(executions.c.session_id == bound.session_id)
    yield _Kind(bound.session_id, (bound.bound_at < from_now(-BOUND_SECONDS)) & ~has_calls)
