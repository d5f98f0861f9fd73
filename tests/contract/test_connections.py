"""How many connections to PostgreSQL a client and a worker hold, idle and under load."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forge_tools.model.execution import Wakeup
from forge_tools.storage import Store, open_store
from forge_tools.storage.connection import pool
from forge_tools.storage.connection.pool import MOST_OF_ONE
from tests.contract.calls import SCOPE, beat, call, instance, submit_one, submitted
from tests.waiting import reached

OPEN = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'forge-tools'"
WORKER_BEAT = 0.02


@pytest.fixture
async def store(migrated_postgres: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.3)
    async with await open_store(migrated_postgres) as opened:
        yield opened


async def burst(store: Store) -> None:
    """Much of everything at once."""
    calls = [call() for _ in range(60)]
    await store.queue.submit_many(calls)
    ids = [new.id for new in calls]
    async with asyncio.TaskGroup() as group:
        for id_ in ids:
            group.create_task(submit_one(store, call()))
            group.create_task(store.queue.claim([Wakeup(id_, 0)], SCOPE))
            group.create_task(store.queue.results([id_]))
            group.create_task(store.queue.due(SCOPE, 1))
            group.create_task(beat(store, "instance-1"))
            group.create_task(store.history.get(id_))
            group.create_task(store.history.figures())


async def test_an_idle_client_holds_one_connection(store: Store, watcher: Any) -> None:
    await submitted(store)
    await store.history.list()
    await reached(lambda: watcher.fetchval(OPEN), when=lambda count: count == 1)
    await submitted(store)


async def test_a_burst_takes_a_bounded_number_and_gives_them_back(store: Store, watcher: Any) -> None:
    await store.workers.register(instance())
    counts = []
    bursting = asyncio.create_task(burst(store))
    async with asyncio.timeout(100):
        while not bursting.done():
            counts.append(await watcher.fetchval(OPEN))
    await bursting
    assert 3 < max(counts) <= MOST_OF_ONE
    await reached(lambda: watcher.fetchval(OPEN), when=lambda count: count == 1)


async def test_the_server_says_how_many_it_takes_and_has(store: Store, watcher: Any) -> None:
    found = await store.connections()
    assert found is not None
    assert found.most == int(await watcher.fetchval("SHOW max_connections")) - 3
    assert found.most > found.open > found.ours >= 1
    assert found.is_limited


async def test_a_worker_that_only_beats_keeps_a_second_one(store: Store, watcher: Any) -> None:
    await store.workers.register(instance())
    await burst(store)

    async def beat_on() -> None:
        async with asyncio.timeout(100):
            while True:
                await beat(store, "instance-1")
                await asyncio.sleep(WORKER_BEAT)

    beating = asyncio.create_task(beat_on())
    await reached(lambda: watcher.fetchval(OPEN), when=lambda count: count == 2)
    pids = await watcher.fetch(OPEN.replace("count(*)", "pid"))
    await asyncio.sleep(3 * pool.IDLE_SECONDS)
    assert await watcher.fetch(OPEN.replace("count(*)", "pid")) == pids
    beating.cancel()
    await asyncio.wait([beating])
