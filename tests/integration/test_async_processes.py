"""Processes of bodies in the async lane, on a real worker: none outlives a stopped call, none at all outlives the worker."""

import asyncio
from pathlib import Path

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext, ExecutionStatus
from tests.fleet import Fleet
from tests.rogue_tools import noted
from tests.waiting import is_alive, wait_until

TOOLS = "tests.starting_tools:TOOLS"

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.mark.parametrize("timeout", [120.0, 5.0])
async def test_a_cancel_or_timeout_leaves_nothing_and_a_neighbour_goes_on(
    fresh_fleet: Fleet, tmp_path: Path, timeout: float
) -> None:
    ways = ["asyncio", "to_thread", "shared pool", "clean session", "posix_spawn"]
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    await asyncio.to_thread(fresh_fleet.start, "async", tools=TOOLS)
    async with ExecutorClient(fresh_fleet.settings) as client:
        context = ExecutionContext(working_dir=str(tmp_path))
        neighbour = await client.submit("Starts", {"ways": ["shared pool", "asyncio"], "notes": str(theirs)}, context)
        await asyncio.to_thread(wait_until, lambda: len(noted(theirs)) == 2, 30, "the neighbour did not start")
        limited = context.model_copy(update={"timeout": timeout})
        handle = await client.submit("Starts", {"ways": ways, "notes": str(mine)}, limited)
        await asyncio.to_thread(wait_until, lambda: noted(mine), 30, "they did not start")
        if timeout > 60:
            await handle.cancel()
        await handle.result(timeout=60)

        assert await handle.status() is (ExecutionStatus.TIMED_OUT if timeout < 60 else ExecutionStatus.CANCELLED)
        assert [pid for pid in noted(mine) if is_alive(pid)] == []
        assert [is_alive(pid) for pid in noted(theirs)] == [True, True]
        await neighbour.cancel()


async def test_what_escapes_mark_group_and_parent_ends_with_the_worker(fresh_fleet: Fleet, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    worker = await asyncio.to_thread(fresh_fleet.start, "async", tools=TOOLS)
    async with ExecutorClient(fresh_fleet.settings) as client:
        context = ExecutionContext(working_dir=str(tmp_path))
        handle = await client.submit("Starts", {"ways": ["escape"], "notes": str(notes)}, context)
        await asyncio.to_thread(wait_until, lambda: len(noted(notes)) == 1, 30, "it did not start")
        await handle.cancel()
        await handle.result(timeout=60)

    [escaped] = noted(notes)
    assert is_alive(escaped)
    await asyncio.to_thread(worker.stop)
    assert not is_alive(escaped)
