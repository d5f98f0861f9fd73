"""The audit chain: append what has ended, verify it, tell its head."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import exists, func, insert, select

from forge_tools.model.audit import AuditReport, Head
from forge_tools.storage.audit import batches
from forge_tools.storage.audit.batches import NOTHING_BEFORE, Batch, OvertakenError
from forge_tools.storage.audit.hashes import (
    NO_ROW,
    hashes_of_definitions,
    hashes_of_events,
    hashes_of_executions,
    line,
    moment_of,
    root_of,
)
from forge_tools.storage.audit.proof import KeptHead, Signer, Trust
from forge_tools.storage.audit.verification import Verification
from forge_tools.storage.connection.database import Database, prepare
from forge_tools.storage.functions import any_of, database_now, stored
from forge_tools.storage.heartbeat import EVER, OVERLAP, Reach
from forge_tools.storage.rows import clean
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import (
    audit_batches,
    audit_events,
    audit_executions,
    execution_attempts,
    execution_events,
    executions,
)

BATCH = 500

ALL = EVER
"""`behind` for what ended at any time."""

LOOK_BACK_SECONDS = 10.0
"""How often a sweep looks again at the last half minute, where an end may have been committed after a later one."""

# RETURNING makes one statement of many rows: asyncpg's executemany, cancelled half way, first waits for its time limit.
_ADD_EXECUTIONS = insert(audit_executions).returning(audit_executions.c.execution_id)
_ADD_EVENTS = insert(audit_events).returning(audit_events.c.event_id)

asked, ended, event = executions.c, execution_attempts.c, execution_events.c


class AuditChain:
    """Seals what has ended, and verifies that it is still as it was."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reach(self) -> Reach:
        """Return how far the chain has come, by its last batch; a heartbeat asks whether anything has ended since."""
        async with self._database.reading() as connection:
            head = await batches.newest(connection)
            end = head.frontier if head else None
            return Reach(EVER if end is None else end, await batches.event_floor(connection, head))

    async def seal(
        self, signer: Signer | None, *, sealer: str, most: int = BATCH, behind: datetime | None = None
    ) -> Batch | None:
        """Seal the oldest `most` executions that have ended, and as many events, in one batch; None if there are none.

        Only those that ended at or after `behind`: the `ended_until` of the batch before, `ALL` for whatever was ever
        left out, or None for a little before the end of the chain.

        Raises:
            OvertakenError: another process has sealed at the same moment.
        """
        async with self._database.reading() as connection:
            await prepare(connection, "still")
            head, now = await batches.newest(connection), await database_now(connection)
            ends = await _unsealed_ends(connection, head, now, most, behind)
            numbers = await _unsealed_events(connection, head, most, behind)
            if not ends and not numbers:
                return None
            hashes = await hashes_of_executions(connection, list(ends))
            events = await hashes_of_events(connection, numbers)
            since = EVER if behind == ALL else await batches.definitions_since(connection, head)
            definitions = await hashes_of_definitions(connection, since)
        moments = [ends[id_] or now for id_ in hashes]
        facts = {"head": head, "now": now, "sealer": clean(sealer), "detail": batches.listing(definitions)}
        new = (await asyncio.to_thread(_batch, moments, hashes, events, **facts)).signed(signer)

        async def work(connection: AsyncConnection) -> None:
            await batches.append(self._database, connection, new)
            if head is None:
                await _require_unpruned(connection, hashes)
            if hashes:
                rows = [{"execution_id": id_, "hashes": sealed} for id_, sealed in hashes.items()]
                await connection.execute(_ADD_EXECUTIONS.values(batch=new.sequence), rows)
            if events:
                entries = [{"event_id": number, "hashes": sealed} for number, sealed in events.items()]
                await connection.execute(_ADD_EVENTS.values(batch=new.sequence), entries)

        await self._database.write(work)
        return new

    async def sweep(
        self, signer: Signer | None, *, sealer: str, most: int = BATCH, behind: datetime | None = None
    ) -> AsyncIterator[Batch]:
        """Seal what has ended, batch by batch, until one is not full. The first begins at `behind`, as in `seal`."""
        looked_back_at = time.monotonic()
        while (sealed := await self.seal(signer, sealer=sealer, most=most, behind=behind)) is not None:
            yield sealed
            if max(sealed.executions, sealed.events) < most:
                return
            behind = sealed.ended_until or behind
            if behind != ALL and time.monotonic() - looked_back_at >= LOOK_BACK_SECONDS:
                behind, looked_back_at = None, time.monotonic()

    async def holds(self, head: KeptHead) -> bool:
        sequence, hash_ = head
        query = select(audit_batches.c.hash).where(audit_batches.c.sequence == sequence)
        return bool(await self._database.scalar(query) == hash_)

    async def head(self) -> Head | None:
        """The newest batch; None before the first."""
        async with self._database.reading() as connection:
            found = await batches.newest(connection)
        return found.head if found else None

    async def count(self) -> int:
        """How many executions are sealed and not pruned: what a verification will compare."""
        query = select(func.count()).where(audit_executions.c.pruned_by.is_(None))
        return await self._database.scalar(query) or 0

    async def verify(
        self,
        trust: Trust | None = None,
        *,
        heads: Sequence[KeptHead] = (),
        signed_from: int = 1,
        told: Callable[[int], object] = lambda _: None,
    ) -> AuditReport:
        """Compare all that is stored with the chain. `told` is called with the number of executions compared so far.

        `trust` are the keys that may have signed it; batches before `signed_from` need no signature. `heads` were kept
        elsewhere and have to be in the chain; read them before.
        """
        return await Verification(
            self._database, trust or Trust(), kept_heads=heads, signed_from=signed_from, told=told
        ).run()


async def _require_unpruned(connection: AsyncConnection, hashes: Mapping[str, bytes]) -> None:
    """Refuse if something was pruned meanwhile: without a chain, pruning leaves no checkpoint that would say so."""
    ids = [id_ for id_, sealed in hashes.items() if not sealed.startswith(NO_ROW)]
    there = await connection.scalar(select(func.count()).where(any_of(asked.id, ids)))
    if there != len(ids):
        raise OvertakenError("History was pruned while its first batch was made. Try again.")


async def _unsealed_ends(
    connection: AsyncConnection, head: Batch | None, now: datetime, most: int, behind: datetime | None
) -> dict[str, datetime | None]:
    entry = exists().where(audit_executions.c.execution_id == ended.execution_id)
    query = select(ended.execution_id, stored(ended.completed_at).label("completed_at")).where(ended.final, ~entry)
    if behind is None and head is not None and head.frontier is not None:
        behind = max(EVER, min(head.frontier, now)) - OVERLAP  # the clock may have been set back
    if behind not in (None, ALL):
        query = query.where(ended.completed_at >= behind)
    rows = await connection.execute(query.order_by(ended.completed_at).limit(most))
    return {row.execution_id: moment_of(row.completed_at) for row in rows}


async def _unsealed_events(
    connection: AsyncConnection, head: Batch | None, most: int, behind: datetime | None
) -> Sequence[int]:
    entry = exists().where(audit_events.c.event_id == event.id)
    known = 0 if behind == ALL else await batches.event_floor(connection, head)
    query = select(event.id).where(event.id > known, ~entry)
    return (await connection.scalars(query.order_by(event.id).limit(most))).all()


def _batch(
    ends: Sequence[datetime],
    executions: Mapping[str, bytes],
    events: Mapping[int, bytes],
    *,
    head: Batch | None,
    now: datetime,
    **said: Any,
) -> Batch:
    lines = [line("execution", id_, hashes) for id_, hashes in executions.items()]
    lines += [line("event", id_, hashes) for id_, hashes in events.items()]
    frontiers = [*ends, *([head.frontier] if head and head.frontier else [])]
    return Batch(
        sequence=head.sequence + 1 if head else 1,
        executions=len(executions),
        events=len(events),
        ended_from=min(ends, default=None),
        ended_until=max(ends, default=None),
        frontier=min(max(frontiers), now) if frontiers else None,  # an end that lies ahead hides no other
        event_frontier=max([*events, head.event_frontier if head else 0]),
        root=root_of(lines),
        previous=head.hash if head else NOTHING_BEFORE,
        sealed_at=now,
        **said,
    )
