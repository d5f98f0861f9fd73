"""Seals what is over: the oldest that no batch holds yet, in a batch behind the last one."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, exists, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.storage.audit import chain
from forge_tools.storage.audit.canonical import EPOCH, NO_ROW, line, moment_of, root_of
from forge_tools.storage.audit.chain import NOTHING_BEFORE, SEAL, Batch, OvertakenError, batch
from forge_tools.storage.audit.keys import Signer
from forge_tools.storage.audit.reading import hashes_of_events, hashes_of_executions, keys_of, reading_raw
from forge_tools.storage.engine import Database
from forge_tools.storage.functions import among, database_now, stored
from forge_tools.storage.heartbeat import EVER, OVERLAP, Reach
from forge_tools.storage.models import audit_events, audit_executions, execution_attempts, execution_events, executions
from forge_tools.storage.rows import clean

asked, ended, event = executions.c, execution_attempts.c, execution_events.c


@dataclass(frozen=True, slots=True)
class Unsealed:
    """What the next batch is to hold, and what it comes behind."""

    head: Batch | None
    now: datetime
    ends: Sequence[Row[Any, Any]]
    events: Sequence[int]


# RETURNING makes one statement of many rows: asyncpg's executemany, cancelled half way, first waits for its time limit.
_ADD_EXECUTIONS = insert(audit_executions).returning(audit_executions.c.execution_id)
_ADD_EVENTS = insert(audit_events).returning(audit_events.c.event_id)


async def seal(
    database: Database, signer: Signer | None, sealer: str, most: int, *, behind: datetime | None
) -> Batch | None:
    """Seal up to `most` executions and as many events; None if there are none.

    They ended at or after `behind`: after a batch, its `ended_until`; None stands for a little before the last one.

    Raises:
        OvertakenError: another process has sealed at the same moment.
    """
    async with reading_raw(database) as connection:
        found = await _unsealed(connection, most, behind)
        if not found.ends and not found.events:
            return None
        ends = await hashes_of_executions(connection, keys_of(found.ends))
        events = await hashes_of_events(connection, found.events)
    new = await asyncio.to_thread(_batch, found, ends, events, clean(sealer), signer)

    async def work(connection: AsyncConnection) -> None:
        await chain.append(database, connection, new)
        if new.sequence == 1:
            await _require_unpruned(connection, ends)
        if ends:
            rows = [{"execution_id": id_, "hashes": hashes} for id_, hashes in ends.items()]
            await connection.execute(_ADD_EXECUTIONS.values(batch=new.sequence), rows)
        if events:
            entries = [{"event_id": id_, "hashes": hashes} for id_, hashes in events.items()]
            await connection.execute(_ADD_EVENTS.values(batch=new.sequence), entries)

    await database.write(work)
    return new


async def _require_unpruned(connection: AsyncConnection, hashes: Mapping[str, bytes]) -> None:
    """What goes while there is a chain leaves a checkpoint, which overtakes a seal; before the first there is none."""
    ids = [id_ for id_, sealed in hashes.items() if not sealed.startswith(NO_ROW)]
    there = await connection.scalar(select(func.count()).where(among(asked.id, ids)))
    if there != len(ids):
        raise OvertakenError("History was pruned while its first batch was made. Try again.")


async def reach(database: Database) -> Reach:
    """How far the last batch says that the chain has come."""
    async with database.reading() as connection:
        head = await chain.newest(connection)
        end = head.frontier if head else None
        return Reach(EVER if end is None else end, await event_floor(connection, head))


async def _unsealed(connection: AsyncConnection, most: int, behind: datetime | None) -> Unsealed:
    head, now = await chain.newest(connection), await database_now(connection)
    entry = exists().where(audit_executions.c.execution_id == ended.execution_id)
    completed_at = stored(ended.completed_at).label("completed_at")
    ends = select(ended.execution_id, completed_at).where(ended.final, ~entry)
    if behind is None and head is not None and head.frontier is not None:
        behind = max(EVER, min(head.frontier, now)) - OVERLAP  # the clock may have been set back
    if behind not in (None, EVER):
        ends = ends.where(ended.completed_at >= behind)
    entry = exists().where(audit_events.c.event_id == event.id)
    known = 0 if behind == EVER else await event_floor(connection, head)
    events = select(event.id).where(event.id > known, ~entry)
    return Unsealed(
        head,
        now,
        (await connection.execute(ends.order_by(ended.completed_at).limit(most))).all(),
        (await connection.scalars(events.order_by(event.id).limit(most))).all(),
    )


async def event_floor(connection: AsyncConnection, head: Batch | None) -> int:
    """The event below which all are sealed: numbers are given before commits, so that a lower one may come later.

    Time counts up to the last look of a sealer, not up to now: what came to light since, nobody has seen yet.
    """
    looked_at = head.sealed_at if head else None
    if head is not None and head.kind != SEAL:
        sealed_at = select(stored(batch.sealed_at)).where(batch.kind == SEAL)
        looked_at = moment_of(await connection.scalar(sealed_at.order_by(batch.sequence.desc()).limit(1)))
    if looked_at is None or looked_at == EPOCH:
        return 0
    before = select(batch.event_frontier).where(batch.kind == SEAL, batch.sealed_at <= max(EVER, looked_at) - OVERLAP)
    return await connection.scalar(before.order_by(batch.sequence.desc()).limit(1)) or 0


def _batch(
    found: Unsealed, executions: dict[str, bytes], events: dict[int, bytes], sealer: str, signer: Signer | None
) -> Batch:
    lines = [line("execution", id_, hashes) for id_, hashes in executions.items()]
    lines += [line("event", id_, hashes) for id_, hashes in events.items()]
    ends = [moment_of(row.completed_at) or found.now for row in found.ends]
    head = found.head
    frontiers = [*ends, *([head.frontier] if head and head.frontier else [])]
    return Batch(
        sequence=head.sequence + 1 if head else 1,
        executions=len(executions),
        events=len(events),
        ended_from=min(ends, default=None),
        ended_until=max(ends, default=None),
        frontier=min(max(frontiers), found.now) if frontiers else None,  # an end that lies ahead hides no other
        event_frontier=max([*events, head.event_frontier if head else 0]),
        root=root_of(lines),
        previous=head.hash if head else NOTHING_BEFORE,
        sealed_at=found.now,
        sealer=sealer,
    ).signed(signer)
