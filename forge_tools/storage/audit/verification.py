"""Compares what is stored with the chain, batch by batch, and names each row that differs, or that no batch holds and cannot be there by right."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Row, Select, and_, exists, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records.audit import AuditReport, Fault, Finding
from forge_tools.storage.audit import chain
from forge_tools.storage.audit.chain import NOTHING_BEFORE, PRUNE, Batch, Portion, event_floor, portions_of
from forge_tools.storage.audit.hashes import (
    EPOCH,
    NO_ROW,
    hashes_of_events,
    hashes_of_executions,
    line,
    moment_of,
    reading_raw,
    root_of,
    split_hashes,
)
from forge_tools.storage.audit.keys import Trust
from forge_tools.storage.connection.database import Database
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

MOST_FINDINGS = 1000
"""Findings that a report keeps; all are counted."""

_PAGE = 50

Entry = tuple[str, Any, bytes, int | None]
"""Kind, key, hashes, and the checkpoint that says it was pruned."""


class Verification:
    """One look at the whole chain. `told` hears how many executions were compared so far."""

    def __init__(
        self,
        database: Database,
        trust: Trust,
        *,
        kept_head: tuple[int, str] | None,
        signed_from: int,
        told: Callable[[int], object],
    ) -> None:
        self.report = AuditReport()
        self._database = database
        self._trust = trust
        self._kept_head = kept_head
        self._signed_from = signed_from
        self._told = told
        self._portions: dict[int, list[Portion]] = defaultdict(list)

    async def run(self) -> AuditReport:
        """Look at everything."""
        async with reading_raw(self._database) as connection:
            last = await chain.newest(connection)
            await self._chain(connection)
            async for batch in self._batches(connection):
                if _is_numbered(batch):
                    await self._rows(connection, batch)
            await Strays(connection, self.report, self._found).look(last, is_signed=bool(self._trust))
        self._compare_kept_head()
        return self.report

    def _found(self, fault: Fault, table: str, key: object, said: str, batch: int | None = None) -> None:
        self.report.found += 1
        if len(self.report.findings) < MOST_FINDINGS:
            self.report.findings.append(Finding(fault, table, str(key), said, batch))

    # The chain: each batch with the hash of the one before, and its signature.

    async def _chain(self, connection: AsyncConnection) -> None:
        after, previous = 0, NOTHING_BEFORE
        async for batch in self._batches(connection):
            if not _is_numbered(batch):
                said = "batches are numbered from 1 on: no sealer has made this one"
                self._found(Fault.INSERTED, "audit_batches", batch.sequence, said)
                continue
            self._link(batch, after, previous)
            after, previous = batch.sequence, batch.hash
            self._note_portions(batch)

    async def _batches(self, connection: AsyncConnection) -> AsyncIterator[Batch]:
        after = chain.BELOW_ALL
        while some := await chain.following(connection, after, _PAGE):
            for batch in some:
                yield batch
            after = some[-1].sequence

    def _link(self, batch: Batch, after: int, previous: str) -> None:
        number = batch.sequence
        if number != after + 1:
            missing = f"{after + 1}" if number == after + 2 else f"{after + 1} to {number - 1}"
            self._found(Fault.MISSING_BATCH, "audit_batches", missing, "the chain has a gap there", after + 1)
        elif batch.previous != previous:
            self._found(Fault.BROKEN_BATCH, "audit_batches", number, "it does not follow the batch before it", number)
        if batch.hash != batch.computed_hash():
            self._found(
                Fault.BROKEN_BATCH, "audit_batches", number, "its columns are not those that were hashed", number
            )
        self._check_signature(batch)
        report = self.report
        report.batches += 1
        report.head = batch.head
        if self._kept_head and self._kept_head[0] == number and self._kept_head[1] == batch.hash:
            self._kept_head = None

    def _check_signature(self, batch: Batch) -> None:
        number, key_id = batch.sequence, batch.key_id
        if key_id is not None and key_id not in self.report.key_ids:
            self.report.key_ids.append(key_id)
        if not self._trust:
            return
        if key_id is None or batch.signature is None:
            if number >= self._signed_from:
                self._found(Fault.UNSIGNED, "audit_batches", number, "nobody signed it, and a key was given", number)
        elif not self._trust.knows(key_id):
            self._found(Fault.UNKNOWN_KEY, "audit_batches", number, f"signed by {key_id}, which was not given", number)
        elif not self._trust.accepts(key_id, batch.message, batch.signature):
            self._found(Fault.BAD_SIGNATURE, "audit_batches", number, f"{key_id} has not signed this", number)
        else:
            self.report.signatures += 1

    def _note_portions(self, batch: Batch) -> None:
        if batch.kind != PRUNE:
            return
        self.report.checkpoints += 1
        try:
            portions = portions_of(batch)
        except (KeyError, TypeError, ValueError):
            said = "its detail does not say what was pruned"
            self._found(Fault.BROKEN_BATCH, "audit_batches", batch.sequence, said, batch.sequence)
            return
        for portion in portions:
            self._portions[portion.batch].append(portion)
            self.report.pruned += portion.executions

    def _compare_kept_head(self) -> None:
        if self._kept_head is not None:
            sequence, hash_ = self._kept_head
            said = f"the head that was kept elsewhere, {sequence}:{hash_}, is not in the chain"
            self._found(Fault.OTHER_HEAD, "audit_batches", sequence, said, sequence)

    # The rows of a batch.

    async def _rows(self, connection: AsyncConnection, batch: Batch) -> None:
        entries = await _entries(connection, batch.sequence)
        self._compare_entries(batch, entries)
        kept = [(kind, key, hashes) for kind, key, hashes, pruned_by in entries if pruned_by is None]
        gone = {(kind, key) for kind, key, _, pruned_by in entries if pruned_by is not None}
        sealed = {key: hashes for kind, key, hashes in kept if kind == "execution"}
        pruned = [key for kind, key in gone if kind == "execution"]
        found = await hashes_of_executions(connection, [*sealed, *pruned])
        for id_, hashes in sealed.items():
            self._compare_execution(id_, hashes, found.get(id_, NO_ROW), batch.sequence)
        sealed_ones = {key: hashes for kind, key, hashes in kept if kind == "event"}
        there = await hashes_of_events(connection, [*sealed_ones, *(key for kind, key in gone if kind == "event")])
        for number, hashes in sealed_ones.items():
            self._compare_event(number, hashes, there.get(number), batch.sequence)
        for table, keys in (
            ("executions", set(pruned) & found.keys()),
            ("execution_events", _events(gone) & there.keys()),
        ):
            for key in sorted(keys, key=str):
                self._found(Fault.INSERTED, table, key, "it was pruned, and is there again", batch.sequence)
        self._count(batch, len(sealed), len(sealed_ones))

    def _count(self, batch: Batch, executions: int, events: int) -> None:
        report = self.report
        report.executions += executions
        report.events += events
        if batch.ended_from is not None and batch.ended_until is not None:
            report.ended_from = min(report.ended_from or batch.ended_from, batch.ended_from)
            report.ended_until = max(report.ended_until or batch.ended_until, batch.ended_until)
            report.longest_wait = max(report.longest_wait, (batch.sealed_at - batch.ended_from).total_seconds())
        self._told(report.executions)

    def _compare_entries(self, batch: Batch, entries: Sequence[Entry]) -> None:
        """What the batch covers must be what it covered, less what checkpoints say was pruned."""
        number, portions = batch.sequence, self._portions.get(batch.sequence, [])
        if batch.kind == PRUNE:
            if entries:
                self._found(Fault.INSERTED, "audit_executions", number, "a checkpoint holds no entries", number)
            return
        if not entries and portions:
            gone = sum(one.executions for one in portions), sum(one.events for one in portions)
            if gone == (batch.executions, batch.events):
                return  # pruned as a whole: the entries went with the last row
        if root_of([line(kind, key, hashes) for kind, key, hashes, _ in entries]) != batch.root:
            count = f"{len(entries):,} entries, sealed were {batch.executions + batch.events:,}"
            self._found(
                Fault.BROKEN_BATCH, "audit_executions", number, f"its entries are not those sealed: {count}", number
            )
        self._compare_portions(number, portions, entries)

    def _compare_portions(self, number: int, portions: Iterable[Portion], entries: Sequence[Entry]) -> None:
        marked = defaultdict(list)
        for kind, key, hashes, pruned_by in entries:
            if pruned_by is not None:
                marked[pruned_by].append(line(kind, key, hashes))
        said = {portion.checkpoint: portion.root for portion in portions}
        for checkpoint in sorted(marked.keys() | said.keys(), key=str):
            if root_of(marked[checkpoint]) != said.get(checkpoint):
                why = f"what is marked as pruned by checkpoint {checkpoint} is not what that says"
                self._found(Fault.BROKEN_BATCH, "audit_executions", number, why, number)

    def _compare_execution(self, id_: str, sealed: bytes, found: bytes, batch: int) -> None:
        if sealed == found:
            return
        before = self.report.found
        row, attempts = split_hashes(sealed)
        row_now, attempts_now = split_hashes(found)
        if row != row_now:
            self._compare_row("executions", id_, row, row_now, batch)
        for number in sorted(attempts.keys() | attempts_now.keys()):
            was, is_ = attempts.get(number, NO_ROW), attempts_now.get(number, NO_ROW)
            if was != is_:
                self._compare_row("execution_attempts", f"{id_} attempt {number}", was, is_, batch)
        if self.report.found == before:
            said = "an attempt of it is there twice, or its hashes are none"
            self._found(Fault.INSERTED, "execution_attempts", id_, said, batch)

    def _compare_event(self, number: int, sealed: bytes, found: bytes | None, batch: int) -> None:
        if sealed != found:
            self._compare_row("execution_events", number, sealed, found or NO_ROW, batch)

    def _compare_row(self, table: str, key: object, was: bytes, is_: bytes, batch: int) -> None:
        fault = Fault.REMOVED if is_ == NO_ROW else Fault.INSERTED if was == NO_ROW else Fault.CHANGED
        said = {
            Fault.REMOVED: "it is gone, and no checkpoint says that it was pruned",
            Fault.INSERTED: "it was not there when its execution was sealed",
            Fault.CHANGED: f"sealed as {was.hex()[:16]}, is {is_.hex()[:16]}",
        }[fault]
        self._found(fault, table, key, said, batch)


def _is_numbered(batch: Batch) -> bool:
    return isinstance(batch.sequence, int) and batch.sequence > 0


def _events(gone: Iterable[tuple[str, Any]]) -> set[Any]:
    return {key for kind, key in gone if kind == "event"}


async def _entries(connection: AsyncConnection, batch: int) -> list[Entry]:
    found: list[Entry] = []
    for kind, table in (("execution", audit_executions), ("event", audit_events)):
        key, *_ = table.primary_key.columns
        query = select(key, table.c.hashes, table.c.pruned_by).where(table.c.batch == batch)
        found += [(kind, row[0], _bytes(row.hashes), row.pruned_by) for row in await connection.execute(query)]
    return found


def _bytes(hashes: Any) -> bytes:
    """What somebody wrote there that is none, on SQLite, is the hash of nothing."""
    return bytes(hashes) if isinstance(hashes, bytes | memoryview) else repr(hashes).encode()


_KEYS_READ = 10_000

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
        keys, found = select(key.label("key")).order_by(key).limit(_KEYS_READ), query().order_by(key)
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
            keys = select(key.label("key")).where(key > reach).order_by(key).limit(_KEYS_READ)
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
