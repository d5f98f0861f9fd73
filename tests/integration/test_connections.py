"""What real workers and clients hold of PostgreSQL once they are idle, and that they work behind a pooler."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext
from forge_tools.storage.connection import pool
from forge_tools.storage.connection.pool import IDLE_WORKER
from tests.fleet import Fleet
from tests.pooler import Pooler
from tests.waiting import reached

OPEN = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'forge-tools'"


DATABASES = ["postgres"]


@asynccontextmanager
async def watching(fleet: Fleet) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Waits until so many connections are open."""
    watcher = await asyncpg.connect(fleet.settings.database)
    try:
        yield lambda wanted, *limit: reached(lambda: watcher.fetchval(OPEN), *limit, when=lambda found: found == wanted)
    finally:
        await watcher.close()


async def test_an_idle_worker_holds_two_connections_and_an_idle_client_one_if_it_has_read_history(
    fresh_fleet: Fleet,
) -> None:
    for lane in ("async", "process"):
        await asyncio.to_thread(fresh_fleet.start, lane)
    context = ExecutionContext(working_dir=str(fresh_fleet.folder))
    limit = 3 * pool.IDLE_SECONDS
    async with watching(fresh_fleet) as are_open:
        async with ExecutorClient(fresh_fleet.settings) as client:
            calls = [
                client.execute(tool, context, message="x") for tool in ("Echo", "EchoInProcess") for _ in range(30)
            ]
            results = await asyncio.gather(*calls)
            assert all(result.success for result in results)
            await are_open(2 * IDLE_WORKER, limit)
            await client.history.list()
            await are_open(2 * IDLE_WORKER + 1, limit)
        await are_open(2 * IDLE_WORKER)


async def test_calls_on_a_worker_behind_a_pooler_that_restarts_all_succeed(fresh_fleet: Fleet, pooler: Pooler) -> None:
    behind = {
        "database_url": pooler.url(fresh_fleet.settings.database, says_so=False),
        "database_pooler": "transaction",
    }
    await asyncio.to_thread(fresh_fleet.start, "async", **behind)
    context = ExecutionContext(working_dir=str(fresh_fleet.folder), timeout=60)
    async with ExecutorClient(fresh_fleet.settings.model_copy(update=behind)) as client:
        calls = [asyncio.create_task(client.execute("Sleep", context, seconds=0.2)) for _ in range(20)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        pooler.restart()
        results = await asyncio.gather(*calls)
    assert [result.error for result in results if not result.success] == []
