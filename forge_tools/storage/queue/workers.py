"""Worker instances: which live, what they serve, and the leases that only one of them holds."""

import builtins
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Row, func, or_, select, update

from forge_tools.model.overview import ServerState, WorkerRecord
from forge_tools.storage.connection.database import Database
from forge_tools.storage.directory import servers_of, walls_of
from forge_tools.storage.functions import from_now, seconds_between
from forge_tools.storage.heartbeat import Answers, Heartbeat
from forge_tools.storage.queue.batcher import Batcher, Limits
from forge_tools.storage.queue.queue import HotPath
from forge_tools.storage.rows import record_of
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import execution_queue, leases, workers

LONGEST_LEASES = 4
"""Workers may be configured with different leases, but hardly by more than this factor."""

known = workers.c


class Workers:
    """The rows that worker processes keep about themselves."""

    def __init__(self, database: Database, hot: HotPath, limits: Limits) -> None:
        self._database = database
        self._heartbeats: Batcher[Heartbeat, Answers] = Batcher(hot.beat, limits)

    async def register(self, worker: WorkerRecord) -> None:
        """Write the row of an instance that starts; repeating this is harmless."""
        names = ("hostname", "pid", "lane", "concurrency", "version")
        facts = {name: getattr(worker, name) for name in names} | {
            "queues": list(worker.queues),
            "servers": [_told(state) for state in worker.servers],
            "walls": asdict(worker.walls),
            "last_seen_at": from_now(0.0),
            "stopped_at": None,
        }
        first = {"tools": {}, "beat": 0, "dropped_messages": 0, "started_at": from_now(0.0)}
        row = self._database.upsert(workers).values(id=worker.id, **first, **facts)
        statement = row.on_conflict_do_update(index_elements=["id"], set_=facts)
        await self._database.execute(statement)

    async def tell_servers(self, instance: str, states: Sequence[ServerState]) -> None:
        await self._tell(instance, servers=[_told(state) for state in states])

    async def beat(self, heartbeat: Heartbeat) -> Answers:
        """Record that a worker instance lives, and answer its questions as of the same moment.

        A cancel is reported at each heartbeat until its execution ends.
        """
        self._database.guard()
        return await self._heartbeats.add(heartbeat)

    async def withdraw(self, instance: str) -> None:
        """Record that an instance no longer serves any queue; it continues until its executions have ended."""
        await self._tell(instance, queues=[])

    async def stop(self, instance: str) -> None:
        """Record that an instance ended in good order, after the current heartbeat, which would mark it as live."""
        await self._heartbeats.settle()
        await self._tell(instance, stopped_at=from_now(0.0), last_seen_at=from_now(0.0))

    async def say_unfit(self, instance: str, why: str | None) -> None:
        """Record why an instance claims nothing; None: it claims again."""
        await self._tell(instance, unfit=why)

    async def _tell(self, instance: str, **facts: Any) -> None:
        statement = update(workers).where(known.id == instance).values(facts)
        await self._database.execute(statement)

    async def list(self, *, seen_within: float | None = None) -> builtins.list[WorkerRecord]:
        """List instances, the one started last first; `seen_within` seconds leaves out those silent for longer."""
        conditions = () if seen_within is None else (beat_within(seen_within),)
        async with self._database.reading() as connection:
            return await read_workers(connection, *conditions)

    async def silence_of(self, hostname: str, lane: str) -> float | None:
        """Return seconds since the last heartbeat of that lane's workers on a host, even stopped ones, or None."""
        query = select(func.max(known.last_seen_at)).where(known.hostname == hostname, known.lane == lane)
        silence = await self._database.scalar(select(seconds_between(query.scalar_subquery(), from_now(0.0))))
        return None if silence is None else max(0.0, silence)

    async def beats(self) -> dict[str, int]:
        """Return the beat of each instance that has not stopped or still owns running rows; -1 without a row.

        It reads the whole queue: an index on owners would have to change with each claim.
        """
        owners = select(execution_queue.c.owner).where(execution_queue.c.owner.is_not(None)).distinct()
        async with self._database.reading() as connection:
            owning = set(await connection.scalars(owners))
            query = select(known.id, known.beat).where(or_(known.stopped_at.is_(None), known.id.in_(owning)))
            beats = {row.id: row.beat for row in await connection.execute(query)}
        return dict.fromkeys(owning, -1) | beats

    async def stopped(self, ids: Collection[str]) -> set[str]:
        """Return those of `ids` that stopped, or were found dead and sent no heartbeat since."""
        query = select(known.id).where(known.id.in_(ids), known.stopped_at.is_not(None))
        return set(await self._database.scalars(query))

    async def take_lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take or renew the lease `name`; False while another holder's has not run out.

        A lease that ends later than any lease lasts was taken before the clock was set back, and does not count.
        """
        taken = {"holder": holder, "expires_at": from_now(seconds)}
        statement = (
            self._database.upsert(leases)
            .values(name=name, **taken)
            .on_conflict_do_update(
                index_elements=["name"],
                set_=taken,
                where=or_(
                    leases.c.holder == holder,
                    leases.c.expires_at <= from_now(0.0),
                    leases.c.expires_at > from_now(seconds * LONGEST_LEASES),
                ),
            )
            .returning(leases.c.name)
        )
        return await self._database.write(lambda connection: connection.scalar(statement)) is not None

    async def close(self) -> None:
        await self._heartbeats.close()


def beat_within(seconds: float) -> ColumnElement[bool]:
    """Select instances with a heartbeat in the last `seconds`. One in the future is from before the clock went back."""
    return workers.c.last_seen_at.between(from_now(-seconds), from_now(seconds))


def is_alive(within: float) -> ColumnElement[bool]:
    return workers.c.stopped_at.is_(None) & beat_within(within)


async def read_workers(connection: AsyncConnection, *conditions: ColumnElement[bool]) -> list[WorkerRecord]:
    silence = seconds_between(known.last_seen_at, from_now(0.0)).label("silent_seconds")
    query = select(workers, silence).where(*conditions).order_by(known.started_at.desc(), known.id)
    return [_worker(row) for row in (await connection.execute(query)).all()]


def _worker(row: Row[Any]) -> WorkerRecord:
    return record_of(
        WorkerRecord,
        row,
        queues=tuple(row.queues),
        silent_seconds=max(0.0, row.silent_seconds),
        servers=tuple(servers_of(row.hostname, row.servers)),
        walls=walls_of(row.walls),
    )


def _told(state: ServerState) -> dict[str, Any]:
    return state.model_dump(mode="json", exclude_defaults=True)
