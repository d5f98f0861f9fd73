"""What a real worker and a real client hold of PostgreSQL once they are idle."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from forge_tools.client import ExecutorClient
from forge_tools.records import ExecutionContext, Lane
from forge_tools.storage import postgres
from forge_tools.storage.connections import IDLE_WORKER
from tests.fleet import Fleet
from tests.waiting import reached

OPEN = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'forge-tools'"


@pytest.fixture
def fleet(tmp_path: Path, valkey: Any, fresh_postgres: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, valkey.url, fresh_postgres, kill_grace=1.0)
    yield fleet
    fleet.stop()


@pytest.mark.parametrize("lane", ["async", "process"])
async def test_an_idle_worker_holds_two_connections_and_an_idle_client_one(fleet: Fleet, lane: Lane) -> None:
    await asyncio.to_thread(fleet.start, lane)
    watcher = await asyncpg.connect(fleet.settings.database)
    tool = {"async": "Echo", "process": "EchoInProcess"}[lane]
    context = ExecutionContext(working_dir=str(fleet.folder))
    limit = 3 * postgres.IDLE_SECONDS
    async with ExecutorClient(fleet.settings) as client:
        results = await asyncio.gather(*(client.execute(tool, context, message=f"{n}") for n in range(40)))
        assert all(result.success for result in results)
        await reached(lambda: watcher.fetchval(OPEN), limit, when=lambda count: count == IDLE_WORKER + 1)
    await reached(lambda: watcher.fetchval(OPEN), when=lambda count: count == IDLE_WORKER)
    await watcher.close()
