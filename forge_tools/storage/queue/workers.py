"""Worker instances: which live, what they serve, and the leases that only one of them holds."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Row, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.errors import ForgeError
from forge_tools.records import ServerState, WorkerRecord
from forge_tools.records.tools import tool_key
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import from_now, seconds_between
from forge_tools.storage.heartbeat import Answers, Heartbeat
from forge_tools.storage.models import execution_queue, leases, workers
from forge_tools.storage.queue.batcher import Batcher, Limits
from forge_tools.storage.rows import record_of

LONGEST_LEASES = 4
"""Workers may be configured with leases of different lengths, but hardly by more than this factor."""

boots = workers.c


class Heartbeats(Protocol):
    """The hot statement of workers; one answer a row, in order."""

    async def look(self, rows: Sequence[Question]) -> Sequence[Look | ForgeError]: ...


class Workers:
    """The rows that worker processes keep about themselves."""

    def __init__(self, hot: Heartbeats, database: Database, *, limits: Limits) -> None:
        self._database = database
        self._heartbeats: Batcher[Heartbeat, Answers] = Batcher(hot.beat, limits)

    async def register(self, worker: WorkerRecord) -> None:
        """Write the row of a boot that starts; again is harmless."""
        facts = {
            "hostname": worker.hostname,
            "pid": worker.pid,
            "lane": worker.lane,
            "queues": list(worker.queues),
            "concurrency": worker.concurrency,
            "version": worker.version,
            "servers": [_told(state) for state in worker.servers],
            "last_seen_at": from_now(0.0),
            "stopped_at": None,
        }
        first = {"tools": {}, "beat": 0, "dropped_messages": 0, "started_at": from_now(0.0)}
        row = self._database.upsert(workers).values(id=worker.id, **first, **facts)
        statement = row.on_conflict_do_update(index_elements=["id"], set_=facts)
        await self._database.write(lambda connection: connection.execute(statement))

    async def tell_servers(self, boot: str, states: Sequence[ServerState]) -> None:
        """Write how the MCP servers of a boot are."""
        statement = update(workers).where(boots.id == boot).values(servers=[_told(state) for state in states])
        await self._database.write(lambda connection: connection.execute(statement))

    async def beat(self, heartbeat: Heartbeat) -> Answers:
        """Say that a worker instance lives, and see at the same moment what it asks.

        Cancels come each time until their executions end.
        """
        self._database.guard()
        return await self._heartbeats.add(heartbeat)

    async def withdraw(self, boot: str) -> None:
        """Say that `boot` takes no more calls; it lives until what it runs has ended, and serves no queue."""
        statement = update(workers).where(boots.id == boot).values(queues=[])
        await self._database.write(lambda connection: connection.execute(statement))

    async def stop(self, boot: str) -> None:
        """Say that `boot` ended in good order; a heartbeat that is under way would say that it lives."""
        await self._heartbeats.settle()
        statement = update(workers).where(boots.id == boot).values(stopped_at=from_now(0.0), last_seen_at=from_now(0.0))
        await self._database.write(lambda connection: connection.execute(statement))

    async def say_unfit(self, boot: str, why: str | None) -> None:
        """Say why `boot` claims nothing; None: it is fit again."""
        statement = update(workers).where(boots.id == boot).values(unfit=why)
        await self._database.write(lambda connection: connection.execute(statement))

    async def list(self, *, seen_within: float | None = None) -> list[WorkerRecord]:
        """Boots, the one started last first; `seen_within` seconds leaves out those silent for longer."""
        conditions = () if seen_within is None else (beat_within(seen_within),)
        async with self._database.reading() as connection:
            return await read_workers(connection, *conditions)

    async def live_queues(self, within: float) -> Counter[tuple[str, str]]:
        """How many boots serve each (queue, lane): those that have not stopped and were seen `within` seconds."""
        query = select(boots.id, boots.queues, boots.lane).where(is_alive(within))
        async with self._database.reading() as connection:
            return Counter((queue, row.lane) for row in (await connection.execute(query)).all() for queue in row.queues)

    async def servers(self, within: float) -> tuple[ServerState, ...]:
        """How the MCP servers are that boots host which have not stopped and were seen `within` seconds."""
        query = select(boots.id, boots.hostname, boots.servers).where(is_alive(within)).order_by(boots.id)
        async with self._database.reading() as connection:
            rows = await connection.execute(query)
            return tuple(state for row in rows for state in _servers(row.hostname, row.servers))

    async def silence_of(self, hostname: str, lane: str) -> float | None:
        """Seconds since a worker of that lane was last seen on a host, stopped or not; None if none ever was."""
        query = select(func.max(boots.last_seen_at)).where(boots.hostname == hostname, boots.lane == lane)
        async with self._database.reading() as connection:
            silence = await connection.scalar(select(seconds_between(query.scalar_subquery(), from_now(0.0))))
        return None if silence is None else max(0.0, silence)

    async def beats(self) -> dict[str, int]:
        """The beat of every boot that has not stopped or still owns running rows; -1 for an owner without a row.

        It reads the whole queue, for no index may say who owns what: a claim would have to change it.
        """
        owners = select(execution_queue.c.owner).where(execution_queue.c.owner.is_not(None)).distinct()
        async with self._database.reading() as connection:
            owning = set(await connection.scalars(owners))
            query = select(boots.id, boots.beat).where(or_(boots.stopped_at.is_(None), boots.id.in_(owning)))
            known = {row.id: row.beat for row in await connection.execute(query)}
        return dict.fromkeys(owning, -1) | known

    async def stopped(self, among: Collection[str]) -> set[str]:
        """Those boots of `among` that stopped, or were found dead and have not beaten since."""
        query = select(boots.id).where(boots.id.in_(among), boots.stopped_at.is_not(None))
        async with self._database.reading() as connection:
            return set((await connection.scalars(query)).all())

    async def take_lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take or renew the lease `name`; False while another holder's has not run out.

        One that ends further away than any lease lasts was taken before the clock was set back, and binds nobody.
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
        """Wait for the heartbeat under way."""
        await self._heartbeats.close()


def beat_within(seconds: float) -> ColumnElement[bool]:
    """Boots that beat in the last `seconds`. A beat from the future is one from before the clock was set back."""
    return workers.c.last_seen_at.between(from_now(-seconds), from_now(seconds))


def is_alive(within: float) -> ColumnElement[bool]:
    """Boots that have not stopped, and beat `within` seconds."""
    return workers.c.stopped_at.is_(None) & beat_within(within)


def hosted_keys(tools: Mapping[str, str]) -> frozenset[str]:
    """The keys of the tools that a boot hosts, from its row: `version digest` by name."""
    return frozenset(tool_key(name, version) for name, version in tools.items())


async def read_workers(connection: AsyncConnection, *conditions: ColumnElement[bool]) -> list[WorkerRecord]:
    """Boots that meet the conditions, the one started last first."""
    query = select(workers, _silence()).where(*conditions).order_by(boots.started_at.desc(), boots.id)
    return [_worker(row) for row in (await connection.execute(query)).all()]


def _silence() -> ColumnElement[float]:
    return seconds_between(boots.last_seen_at, from_now(0.0)).label("silent_seconds")


def _worker(row: Row[Any]) -> WorkerRecord:
    return record_of(
        WorkerRecord,
        row,
        queues=tuple(row.queues),
        silent_seconds=max(0.0, row.silent_seconds),
        servers=tuple(_servers(row.hostname, row.servers)),
    )


def _told(state: ServerState) -> dict[str, Any]:
    return state.model_dump(mode="json", exclude_defaults=True)


def _servers(hostname: str, states: Sequence[Any]) -> Iterator[ServerState]:
    """Those that this version can read; newer code may tell of them otherwise."""
    for told in states:
        with suppress(ValidationError):
            yield ServerState.model_validate(told).model_copy(update={"hostname": hostname})
