"""What real workers and clients hold of PostgreSQL once they are idle, and that they work behind a pooler."""

import asyncio

import asyncpg

from forge_tools.client import ExecutorClient
from forge_tools.records import ExecutionContext
from forge_tools.storage.connection import pool
from forge_tools.storage.connection.pool import IDLE_WORKER
from tests.fleet import Fleet
from tests.pooler import Pooler
from tests.waiting import reached

OPEN = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'forge-tools'"


DATABASES = ["postgres"]


async def test_an_idle_worker_holds_two_connections_and_an_idle_client_one(fresh_fleet: Fleet) -> None:
    for lane in ("async", "process"):
        await asyncio.to_thread(fresh_fleet.start, lane)
    watcher = await asyncpg.connect(fresh_fleet.settings.database)
    context = ExecutionContext(working_dir=str(fresh_fleet.folder))
    limit = 3 * pool.IDLE_SECONDS
    async with ExecutorClient(fresh_fleet.settings) as client:
        calls = [client.execute(tool, context, message="x") for tool in ("Echo", "EchoInProcess") for _ in range(30)]
        results = await asyncio.gather(*calls)
        assert all(result.success for result in results)
        await reached(lambda: watcher.fetchval(OPEN), limit, when=lambda count: count == 2 * IDLE_WORKER + 1)
    await reached(lambda: watcher.fetchval(OPEN), when=lambda count: count == 2 * IDLE_WORKER)
    await watcher.close()


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
