"""Compares what is stored with the chain, batch by batch, and names each row that differs, or that should be in a batch and is in none."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, Select, and_, exists, select

from forge_tools.model.audit import AuditReport, Fault, Finding
from forge_tools.storage.audit import batches
from forge_tools.storage.audit.batches import NOTHING_BEFORE, PRUNE, Batch, Portion, listed, portions_of
from forge_tools.storage.audit.hashes import (
    EPOCH,
    NO_ROW,
    Definition,
    hashes_of_definitions,
    hashes_of_events,
    hashes_of_executions,
    line,
    moment_of,
    root_of,
    split_hashes,
)
from forge_tools.storage.audit.proof import KeptHead, Trust
from forge_tools.storage.connection.database import Database, prepare
from forge_tools.storage.functions import database_now, stored
from forge_tools.storage.heartbeat import EVER, OVERLAP
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import (
    audit_batches,
    audit_events,
    audit_executions,
    execution_attempts,
    execution_events,
    execution_queue,
    executions,
)

MOST_FINDINGS = 1000
"""How many findings a report keeps; all are counted."""

_PAGE = 50
_READ_AT_ONCE = 1000

_SETTLED = timedelta(minutes=2)
"""After so long a call has ended or is in the queue, whatever the clock of its submitter says."""

asked, ended, event = executions.c, execution_attempts.c, execution_events.c
entry, event_entry = audit_executions.c, audit_events.c

Entry = tuple[str, Any, bytes, int | None]
"""Kind, key, hashes, and the checkpoint that says it was pruned."""


class Verification:
    """One verification of the whole chain. `told` is called with the number of executions compared so far."""

    def __init__(
        self,
        database: Database,
        trust: Trust,
        *,
        kept_heads: Sequence[KeptHead],
        signed_from: int,
        told: Callable[[int], object],
    ) -> None:
        self.report = AuditReport()
        self._database = database
        self._trust = trust
        self._missed = set(kept_heads)
        self.report.kept_heads = len(self._missed)
        self._signed_from = signed_from
        self._told = told
        self._portions: dict[int, dict[int, Portion]] = defaultdict(dict)
        """By batch and checkpoint."""
        self._definitions: dict[Definition, bytes] = {}

    async def run(self) -> AuditReport:
        async with self._database.reading(is_long=True) as connection:
            await prepare(connection, "still")
            last = await batches.newest(connection)
            await self._chain(connection)
            await self._compare_definitions(connection, last)
            async for batch in self._batches(connection):
                if _is_numbered(batch):
                    await self._rows(connection, batch)
            await self._unsealed(connection, last)
        self._compare_kept_heads()
        return self.report

    def note(self, fault: Fault, table: str, key: object, said: str, batch: int | None = None) -> None:
        self.report.found += 1
        if len(self.report.findings) < MOST_FINDINGS:
            self.report.findings.append(Finding(fault, table, str(key), said, batch))

    # The chain: each batch with the hash of the one before, and its signature.

    async def _chain(self, connection: AsyncConnection) -> None:
        after, previous = 0, NOTHING_BEFORE
        async for batch in self._batches(connection):
            if not _is_numbered(batch):
                said = "batches are numbered from 1 on: no sealer has made this one"
                self.note(Fault.INSERTED, "audit_batches", batch.sequence, said)
                continue
            self._link(batch, after, previous)
            after, previous = batch.sequence, batch.hash
            self._note_detail(batch)

    async def _batches(self, connection: AsyncConnection) -> AsyncIterator[Batch]:
        after = batches.BELOW_ALL
        while some := await batches.following(connection, after, _PAGE):
            for batch in some:
                yield batch
            after = some[-1].sequence

    def _link(self, batch: Batch, after: int, previous: str) -> None:
        number = batch.sequence
        if number != after + 1:
            missing = f"{after + 1}" if number == after + 2 else f"{after + 1} to {number - 1}"
            self.note(Fault.MISSING_BATCH, "audit_batches", missing, "the chain has a gap there", after + 1)
        elif batch.previous != previous:
            self.note(Fault.BROKEN_BATCH, "audit_batches", number, "it does not follow the batch before it", number)
        if batch.hash != batch.computed_hash():
            self.note(Fault.BROKEN_BATCH, "audit_batches", number, "its columns are not those that were hashed", number)
        self._check_signature(batch)
        report = self.report
        report.batches += 1
        report.head = batch.head
        self._missed.discard((number, batch.hash))

    def _check_signature(self, batch: Batch) -> None:
        number, key_id = batch.sequence, batch.key_id
        if key_id is not None and key_id not in self.report.key_ids:
            self.report.key_ids.append(key_id)
        if not self._trust:
            return
        if key_id is None or batch.signature is None:
            if number >= self._signed_from:
                self.note(Fault.UNSIGNED, "audit_batches", number, "nobody signed it, and a key was given", number)
        elif not self._trust.knows(key_id):
            self.note(Fault.UNKNOWN_KEY, "audit_batches", number, f"signed by {key_id}, which was not given", number)
        elif not self._trust.accepts(key_id, batch.message, batch.signature):
            self.note(Fault.BAD_SIGNATURE, "audit_batches", number, f"{key_id} has not signed this", number)
        else:
            self.report.signatures += 1

    def _note_detail(self, batch: Batch) -> None:
        try:
            if batch.kind == PRUNE:
                self.report.checkpoints += 1
                for portion in portions_of(batch):
                    self._portions[portion.batch][batch.sequence] = portion
                    self.report.pruned += portion.executions
            else:
                self._definitions = listed(batch) | self._definitions
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            said = "its detail does not say what was pruned, or which tools were first seen"
            self.note(Fault.BROKEN_BATCH, "audit_batches", batch.sequence, said, batch.sequence)

    async def _compare_definitions(self, connection: AsyncConnection, last: Batch | None) -> None:
        """Definitions never go; people may enable, pin and disable them."""
        sealed, now = self._definitions, await hashes_of_definitions(connection)
        young = await hashes_of_definitions(connection, await batches.definitions_since(connection, last))
        self.report.definitions = len(sealed)
        for key in sorted(sealed.keys() | (now.keys() - young.keys())):
            self._compare_row("tools", " ".join(key), sealed.get(key, NO_ROW), now.get(key, NO_ROW))

    def _compare_kept_heads(self) -> None:
        if not self._missed:
            return
        sequence, hash_ = min(self._missed)
        said = (
            f"{len(self._missed):,} of {self.report.kept_heads:,} heads that were kept elsewhere are not in the chain"
        )
        if len(self._missed) == self.report.kept_heads:
            said += ": they are of another database, or it was made anew"
        said += f"; the first is {sequence}:{hash_}"
        self.note(Fault.OTHER_HEAD, "audit_batches", sequence, said, sequence)

    # The rows of a batch.

    async def _rows(self, connection: AsyncConnection, batch: Batch) -> None:
        entries = await _entries(connection, batch.sequence)
        self._compare_entries(batch, entries)
        counts = []
        for kind, table, read in (
            ("execution", "executions", hashes_of_executions),
            ("event", "execution_events", hashes_of_events),
        ):
            of_kind = [(key, hashes, pruned_by) for one, key, hashes, pruned_by in entries if one == kind]
            found = await read(connection, [key for key, *_ in of_kind])
            for key, hashes, pruned_by in of_kind:
                if pruned_by is not None:
                    if key in found:
                        self.note(Fault.INSERTED, table, key, "it was pruned, and is there again", batch.sequence)
                elif kind == "event":
                    self._compare_row(table, key, hashes, found.get(key, NO_ROW), batch.sequence)
                else:
                    self._compare_execution(key, hashes, found.get(key, NO_ROW), batch.sequence)
            counts.append(sum(pruned_by is None for *_, pruned_by in of_kind))
        self._count(batch, *counts)

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
        """The entries of a batch must be those that were sealed, less what checkpoints say was pruned."""
        number, portions = batch.sequence, self._portions.get(batch.sequence, {})
        if batch.kind == PRUNE:
            if entries:
                self.note(Fault.INSERTED, "audit_executions", number, "a checkpoint holds no entries", number)
            return
        if not entries and portions:
            gone = (sum(one.executions for one in portions.values()), sum(one.events for one in portions.values()))
            if gone == (batch.executions, batch.events):
                return  # pruned as a whole: the entries went with the last row
        if root_of([line(kind, key, hashes) for kind, key, hashes, _ in entries]) != batch.root:
            others = f"its {len(entries):,} entries are not the {batch.executions + batch.events:,} that were sealed"
            self.note(Fault.BROKEN_BATCH, "audit_executions", number, others, number)
        marked = defaultdict(list)
        for kind, key, hashes, pruned_by in entries:
            if pruned_by is not None:
                marked[pruned_by].append(line(kind, key, hashes))
        for checkpoint in sorted(marked.keys() | portions.keys(), key=str):  # a forged mark may be a text
            said = portions.get(checkpoint)
            if said is None or root_of(marked[checkpoint]) != said.root:
                why = f"what is marked as pruned by checkpoint {checkpoint} is not what that says"
                self.note(Fault.BROKEN_BATCH, "audit_executions", number, why, number)

    def _compare_execution(self, id_: str, sealed: bytes, found: bytes, batch: int) -> None:
        if sealed == found:
            return
        before = self.report.found
        row, attempts = split_hashes(sealed)
        row_now, attempts_now = split_hashes(found)
        self._compare_row("executions", id_, row, row_now, batch)
        for number in sorted(attempts.keys() | attempts_now.keys()):
            was, is_ = attempts.get(number, NO_ROW), attempts_now.get(number, NO_ROW)
            self._compare_row("execution_attempts", f"{id_} attempt {number}", was, is_, batch)
        if self.report.found == before:
            said = "an attempt of it is there twice, or its hashes are none"
            self.note(Fault.INSERTED, "execution_attempts", id_, said, batch)

    def _compare_row(self, table: str, key: object, was: bytes, is_: bytes, batch: int | None = None) -> None:
        if was == is_:
            return
        fault = Fault.REMOVED if is_ == NO_ROW else Fault.INSERTED if was == NO_ROW else Fault.CHANGED
        said = {
            Fault.REMOVED: "it is gone, and no checkpoint says that it was pruned",
            Fault.INSERTED: "it was not there when the rest was sealed",
            Fault.CHANGED: f"sealed as {was.hex()[:16]}, is {is_.hex()[:16]}",
        }[fault]
        self.note(fault, table, key, said, batch)

    # What is in no batch.

    async def _unsealed(self, connection: AsyncConnection, last: Batch | None) -> None:
        """`last` is the newest batch from before the chain was read: rows sealed meanwhile are no forgeries."""
        now, report = await database_now(connection), self.report
        await self._compare_ends(connection, last, now)
        for query, table, said in _inserted(await batches.event_floor(connection, last)):
            async for row in _found(connection, query):
                self.note(Fault.INSERTED, table, row.key, said.format(row))
        oldest = report.oldest_unsealed
        if self._trust and last is None and oldest is not None and oldest < now - _SETTLED:
            self.note(Fault.UNSIGNED, "audit_batches", 1, "there is no batch at all, and a key was given")

    async def _compare_ends(self, connection: AsyncConnection, last: Batch | None, now: datetime) -> None:
        """Executions without an entry have ended since the last batch, or wait in the queue."""
        frontier, report = last.frontier if last else None, self.report
        since = frontier and max(EVER, min(frontier, now)) - OVERLAP
        async for row in _found(connection, _unsealed_executions()):
            ended_at = moment_of(row.completed_at)
            if row.completed_at is None:
                if (moment_of(row.queued_at) or EPOCH) < now - _SETTLED:
                    self.note(Fault.UNFINISHED, "executions", row.key, "it has not ended, and is not in the queue")
            elif ended_at is None or (since is not None and ended_at < since):
                said = f"it says it ended at {str(row.completed_at)[:19]}, before the last seal, and no batch has it"
                self.note(Fault.INSERTED, "executions", row.key, said)
            else:
                report.unsealed += 1
                report.oldest_unsealed = min(report.oldest_unsealed or ended_at, ended_at)


def _is_numbered(batch: Batch) -> bool:
    return isinstance(batch.sequence, int) and batch.sequence > 0


async def _entries(connection: AsyncConnection, batch: int) -> list[Entry]:
    found: list[Entry] = []
    for kind, table in (("execution", audit_executions), ("event", audit_events)):
        key, *_ = table.primary_key.columns
        query = select(key, table.c.hashes, table.c.pruned_by).where(table.c.batch == batch)
        found += [(kind, row[0], _bytes(row.hashes), row.pruned_by) for row in await connection.execute(query)]
    return found


def _bytes(hashes: Any) -> bytes:
    """Read hashes that anybody may have written on SQLite; what is no hash equals none."""
    return bytes(hashes) if isinstance(hashes, bytes | memoryview) else repr(hashes).encode()


async def _found(connection: AsyncConnection, query: Select[Any]) -> AsyncIterator[Row[Any]]:
    async with connection.stream(query, execution_options={"yield_per": _READ_AT_ONCE}) as rows:
        async for row in rows:
            yield row


def _unsealed_executions() -> Select[Any]:
    sealed = exists().where(entry.execution_id == asked.id)
    # Not exists().where(): that is a SELECT *, and auditors may not read every column.
    waits = select(execution_queue.c.id).where(execution_queue.c.id == asked.id).exists()
    last = and_(ended.execution_id == asked.id, ended.final)
    is_over = ended.execution_id.is_not(None)  # and in the queue all the same: no statement of ours leaves it so
    query = select(
        asked.id.label("key"),
        stored(asked.queued_at).label("queued_at"),
        stored(ended.completed_at).label("completed_at"),
    )
    return query.select_from(executions.outerjoin(execution_attempts, last)).where(~sealed, ~waits | is_over)


def _inserted(floor: int) -> Iterator[tuple[Select[Any], str, str]]:
    """Yield queries for rows that no statement of ours leaves behind, with their table and what to say of them."""
    is_owned = exists().where(asked.id == ended.execution_id)
    is_sealed = exists().where(entry.execution_id == ended.execution_id)
    orphaned = select(ended.execution_id.label("key")).where(~is_owned, ~is_sealed)
    yield orphaned, "execution_attempts", "there is no such execution"
    is_over = exists().where(entry.execution_id == execution_queue.c.id, entry.pruned_by.is_(None))
    waiting = select(execution_queue.c.id.label("key")).where(is_over)
    yield waiting, "execution_queue", "it is over and sealed, and in the queue again"
    has_entry = exists().where(event_entry.event_id == event.id)
    unsealed = select(event.id.label("key")).where(event.id <= floor, ~has_entry)
    yield unsealed, "execution_events", "later ones are sealed, and no batch has it"
    for key, number in ((entry.execution_id, entry.batch), (event_entry.event_id, event_entry.batch)):
        has_batch = exists().where(audit_batches.c.sequence == number)
        yield select(key.label("key"), number).where(~has_batch), str(key.table), "there is no batch {0.batch}"
