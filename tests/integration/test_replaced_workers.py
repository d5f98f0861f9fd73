"""Workers that only look alive: one that no longer consumes, one whose interpreter a tool holds; and one that is only frozen."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from forge_tools.client import ExecutorClient
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext
from tests.fleet import Fleet
from tests.server_process import children_with
from tests.waiting import wait_until

MEGABYTE = 2**20


@pytest.fixture
def fleet(tmp_path: Path, valkey_url: str, sqlite_url: str) -> Fleet:
    return Fleet(tmp_path, valkey_url, sqlite_url, kill_grace=1.0)


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(fleet.settings) as client:
        yield client
    await asyncio.to_thread(fleet.stop)


async def test_a_worker_that_no_longer_consumes_leaves_and_what_waits_runs_elsewhere(
    fleet: Fleet, client: ExecutorClient
) -> None:
    context = ExecutionContext(working_dir=str(fleet.folder))
    worker = await asyncio.to_thread(fleet.start, "async", consumption_interval="1")
    await client.catalogue.refresh()
    deafened = await client.execute("Deafen", context)

    results = await asyncio.gather(*(client.execute("Echo", context, message="pulled from SQL") for _ in range(3)))
    await asyncio.to_thread(worker.process.wait, 60)
    await asyncio.to_thread(fleet.start, "async")
    after = await client.execute("Echo", context, message="by message")

    assert deafened.output == 1
    assert [result.output for result in results] == ["pulled from SQL"] * 3
    assert after.output == "by message"
    assert "none arrives here; this worker ends" in worker.log.read_text()


async def test_a_worker_whose_interpreter_is_held_is_killed_and_one_that_is_frozen_is_not(
    fleet: Fleet, client: ExecutorClient
) -> None:
    context, mark = ExecutionContext(working_dir=str(fleet.folder), timeout=5), fleet.folder / "mark"
    held = await asyncio.to_thread(fleet.start, "async")
    await client.catalogue.refresh()
    call = await client.submit("HoldInterpreter", {"seconds": 100, "mark": str(mark)}, context)
    await asyncio.to_thread(wait_until, mark.exists, 20, "the body did not start")
    frozen, neighbour = [await asyncio.to_thread(fleet.start, "async") for _ in range(2)]
    await asyncio.to_thread(fleet.freeze, frozen)
    watchdogs = children_with("watchdog.py", neighbour.pid)

    await asyncio.to_thread(held.process.wait, 60)
    seconds = time.time() - mark.stat().st_mtime
    result = await call.result(timeout=60)
    await asyncio.to_thread(wait_until, lambda: time.time() - mark.stat().st_mtime > 20, 60, "time stands still")
    frozen.signal(signal.SIGCONT)
    status = frozen.process.poll()

    assert (held.process.returncode, status) == (-signal.SIGKILL, None)
    assert 14 < seconds < 60, "it is given a lease, and does not end with the body"
    assert "something blocks its interpreter" in held.log.read_text()
    assert result.error_code == ErrorCode.LOST
    assert [child.memory_full_info().uss < 8 * MEGABYTE for child in watchdogs] == [True]
    assert psutil.Process(neighbour.pid).memory_info().rss < 140 * MEGABYTE


async def test_a_worker_whose_descriptors_a_tool_closed_ends_so_that_its_supervisor_starts_another(
    fleet: Fleet, client: ExecutorClient
) -> None:
    context, mark = ExecutionContext(working_dir=str(fleet.folder), timeout=20), fleet.folder / "mark"
    broken = await asyncio.to_thread(fleet.start, "async")
    await client.catalogue.refresh()
    call = await client.submit("LetGo", {"mark": str(mark)}, context)

    status = await asyncio.to_thread(broken.process.wait, 60)
    await asyncio.to_thread(fleet.start, "async")
    after = await client.execute("Echo", context, message="served again")

    assert status != 0
    assert (await call.result(timeout=60)).error_code == ErrorCode.LOST
    assert after.output == "served again"
