"""Compares what is stored with the chain, batch by batch, and names each row that differs, or that should be in a batch and is in none."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, ColumnElement, Row, Select, and_, exists, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.model.audit import AuditReport, Fault, Finding
from forge_tools.storage.audit import batches
from forge_tools.storage.audit.batches import NOTHING_BEFORE, PRUNE, Batch, Portion, event_floor, portions_of
from forge_tools.storage.audit.definitions import Definition, hashes_of_definitions, listed, unsealed_since
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
from forge_tools.storage.audit.heads import KeptHead
from forge_tools.storage.audit.keys import Trust
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import database_now, stored
from forge_tools.storage.heartbeat import EVER, OVERLAP
from forge_tools.storage.tables import (
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
        self._portions: dict[int, list[Portion]] = defaultdict(list)
        self._definitions: dict[Definition, bytes] = {}

    async def run(self) -> AuditReport:
        """Compare everything."""
        async with reading_raw(self._database) as connection:
            last = await batches.newest(connection)
            await self._chain(connection)
            await self._compare_definitions(connection, last)
            async for batch in self._batches(connection):
                if _is_numbered(batch):
                    await self._rows(connection, batch)
            await UnsealedRows(connection, self).look(last, is_signed=bool(self._trust))
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
                self._note_portions(portions_of(batch))
            else:
                self._definitions = listed(batch) | self._definitions
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            said = "its detail does not say what was pruned, or which tools were first seen"
            self.note(Fault.BROKEN_BATCH, "audit_batches", batch.sequence, said, batch.sequence)

    def _note_portions(self, portions: Iterable[Portion]) -> None:
        for portion in portions:
            self._portions[portion.batch].append(portion)
            self.report.pruned += portion.executions

    async def _compare_definitions(self, connection: AsyncConnection, last: Batch | None) -> None:
        """Definitions never go; people may enable, pin and disable them."""
        sealed, now = self._definitions, await hashes_of_definitions(connection)
        young = await hashes_of_definitions(connection, await unsealed_since(connection, last))
        self.report.definitions = len(sealed)
        for key in sorted(sealed.keys() | (now.keys() - young.keys())):
            if (was := sealed.get(key, NO_ROW)) != (is_ := now.get(key, NO_ROW)):
                self._compare_row("tools", " ".join(key), was, is_)

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
        sealed: dict[str, dict[Any, bytes]] = {"execution": {}, "event": {}}
        pruned: dict[str, set[Any]] = {"execution": set(), "event": set()}
        for kind, key, hashes, pruned_by in entries:
            if pruned_by is None:
                sealed[kind][key] = hashes
            else:
                pruned[kind].add(key)
        found = await hashes_of_executions(connection, [*sealed["execution"], *pruned["execution"]])
        for id_, hashes in sealed["execution"].items():
            self._compare_execution(id_, hashes, found.get(id_, NO_ROW), batch.sequence)
        there = await hashes_of_events(connection, [*sealed["event"], *pruned["event"]])
        for number, hashes in sealed["event"].items():
            if hashes != (now := there.get(number, NO_ROW)):
                self._compare_row("execution_events", number, hashes, now, batch.sequence)
        for table, back in (
            ("executions", pruned["execution"] & found.keys()),
            ("execution_events", pruned["event"] & there.keys()),
        ):
            for key in sorted(back, key=str):
                self.note(Fault.INSERTED, table, key, "it was pruned, and is there again", batch.sequence)
        self._count(batch, len(sealed["execution"]), len(sealed["event"]))

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
        number, portions = batch.sequence, self._portions.get(batch.sequence, [])
        if batch.kind == PRUNE:
            if entries:
                self.note(Fault.INSERTED, "audit_executions", number, "a checkpoint holds no entries", number)
            return
        if not entries and portions:
            gone = sum(one.executions for one in portions), sum(one.events for one in portions)
            if gone == (batch.executions, batch.events):
                return  # pruned as a whole: the entries went with the last row
        if root_of([line(kind, key, hashes) for kind, key, hashes, _ in entries]) != batch.root:
            count = f"{len(entries):,} entries, sealed were {batch.executions + batch.events:,}"
            self.note(
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
                self.note(Fault.BROKEN_BATCH, "audit_executions", number, why, number)

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
            self.note(Fault.INSERTED, "execution_attempts", id_, said, batch)

    def _compare_row(self, table: str, key: object, was: bytes, is_: bytes, batch: int | None = None) -> None:
        fault = Fault.REMOVED if is_ == NO_ROW else Fault.INSERTED if was == NO_ROW else Fault.CHANGED
        said = {
            Fault.REMOVED: "it is gone, and no checkpoint says that it was pruned",
            Fault.INSERTED: "it was not there when the rest was sealed",
            Fault.CHANGED: f"sealed as {was.hex()[:16]}, is {is_.hex()[:16]}",
        }[fault]
        self.note(fault, table, key, said, batch)


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
    """Read what anybody may have written on SQLite; what is no hash equals none."""
    return bytes(hashes) if isinstance(hashes, bytes | memoryview) else repr(hashes).encode()


_KEYS_READ = 10_000

asked, ended, event = executions.c, execution_attempts.c, execution_events.c
entry, event_entry = audit_executions.c, audit_events.c
_SETTLED = timedelta(minutes=2)
"""After so long a call has ended or is in the queue, whatever the clock of its submitter says."""


class UnsealedRows:
    """Searches each table, in order of its key, for rows without an entry and for entries without a batch."""

    def __init__(self, connection: AsyncConnection, found: "Verification") -> None:
        self._connection = connection
        self._report = found.report
        self._note = found.note

    async def look(self, last: Batch | None, *, is_signed: bool) -> None:
        """`last` is the newest batch from before the chain was read: rows sealed meanwhile are no forgeries.

        If it `is_signed`, there has to be one.
        """
        now = await database_now(self._connection)
        await self._compare_ends(last, now)
        for query, key, said in _inserted(await event_floor(self._connection, last)):
            async for row in self._pages(query, key):
                self._note(Fault.INSERTED, str(key.table), row.key, said.format(row))
        oldest = self._report.oldest_unsealed
        if is_signed and last is None and oldest is not None and oldest < now - _SETTLED:
            self._note(Fault.UNSIGNED, "audit_batches", 1, "there is no batch at all, and a key was given")

    async def _compare_ends(self, last: Batch | None, now: datetime) -> None:
        """Executions without an entry have ended since the last batch, or wait in the queue."""
        frontier, report = last.frontier if last else None, self._report
        since = frontier and max(EVER, min(frontier, now)) - OVERLAP
        async for row in self._pages(_unsealed_executions(), asked.id):
            ended_at = moment_of(row.completed_at)
            if row.completed_at is None:
                if (moment_of(row.queued_at) or EPOCH) < now - _SETTLED:
                    self._note(Fault.UNFINISHED, "executions", row.key, "it has not ended, and is not in the queue")
            elif ended_at is None or (since is not None and ended_at < since):
                said = f"it says it ended at {str(row.completed_at)[:19]}, before the last seal, and no batch has it"
                self._note(Fault.INSERTED, "executions", row.key, said)
            else:
                report.unsealed += 1
                report.oldest_unsealed = min(report.oldest_unsealed or ended_at, ended_at)

    async def _pages(self, query: Select[Any], key: ColumnElement[Any]) -> AsyncIterator[Row[Any]]:
        """The rows that `query` finds, so many keys at a time, so that no statement reads the whole table where it finds nothing."""
        keys, found = select(key.label("key")).order_by(key).limit(_KEYS_READ), query.order_by(key)
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
            found = query.where(key > reach).order_by(key)


def _unsealed_executions() -> Select[Any]:
    sealed = exists().where(entry.execution_id == asked.id)
    waits = select(execution_queue.c.id).where(execution_queue.c.id == asked.id).exists()  # no more may an auditor read
    last = and_(ended.execution_id == asked.id, ended.final)
    is_over = ended.execution_id.is_not(None)  # and in the queue all the same: no statement of ours leaves it so
    query = select(
        asked.id.label("key"),
        stored(asked.queued_at).label("queued_at"),
        stored(ended.completed_at).label("completed_at"),
    )
    return query.select_from(executions.outerjoin(execution_attempts, last)).where(~sealed, ~waits | is_over)


def _inserted(floor: int) -> Iterator[tuple[Select[Any], Column[Any], str]]:
    """What finds rows that no statement of ours leaves, the key in whose order they are read, and what is said of them."""
    is_owned = exists().where(asked.id == ended.execution_id)
    is_sealed = exists().where(entry.execution_id == ended.execution_id)
    orphaned = select(ended.execution_id.label("key")).where(~is_owned, ~is_sealed)
    yield orphaned, ended.execution_id, "there is no such execution"
    is_over = exists().where(entry.execution_id == execution_queue.c.id, entry.pruned_by.is_(None))
    waiting = select(execution_queue.c.id.label("key")).where(is_over)
    yield waiting, execution_queue.c.id, "it is over and sealed, and in the queue again"
    has_entry = exists().where(event_entry.event_id == event.id)
    unsealed = select(event.id.label("key")).where(event.id <= floor, ~has_entry)
    yield unsealed, event.id, "later ones are sealed, and no batch has it"
    for key, number in ((entry.execution_id, entry.batch), (event_entry.event_id, event_entry.batch)):
        has_batch = exists().where(audit_batches.c.sequence == number)
        yield select(key.label("key"), number).where(~has_batch), key, "there is no batch {0.batch}"
