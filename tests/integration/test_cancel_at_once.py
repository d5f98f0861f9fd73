"""A cancel reaches the worker before its heartbeat does. In a module of its own: other workers would take the wake-up of the call."""

import asyncio

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext
from tests.fleet import Fleet
from tests.waiting import wait_until


@pytest.mark.parametrize("lane", ["async", "process"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_running_call_hears_of_its_cancel_long_before_the_next_heartbeat(fresh_fleet: Fleet, lane: str) -> None:
    mark = fresh_fleet.folder / "mark"
    await asyncio.to_thread(fresh_fleet.start, lane, heartbeat="60", lease="300")
    async with ExecutorClient(fresh_fleet.settings) as client:
        context = ExecutionContext(working_dir=str(fresh_fleet.folder))
        tool = "Sleep" if lane == "async" else "Block"
        handle = await client.submit(tool, {"seconds": 60, "mark": str(mark)}, context)
        await asyncio.to_thread(wait_until, lambda: mark.exists() and mark.read_text(), 20, "the body did not start")

        assert await handle.cancel() == "requested"
        result = await handle.result(timeout=30)

    assert result.error_code == ErrorCode.CANCELLED
