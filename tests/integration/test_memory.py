"""A tool that uses too much memory is ended in the process lane, its result says so, and its neighbours continue."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ExecutionStatus
from tests.fleet import Fleet
from tests.rogue_tools import noted
from tests.waiting import is_alive, wait_until

LIMIT = 400 * 2**20


@pytest.fixture
def hungry_fleet(tmp_path: Path, valkey: Any) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, valkey.url, f"sqlite:///{tmp_path / 'forge.db'}", kill_grace=1.0)
    fleet.start("process", concurrency=3, tool_memory=str(LIMIT))
    yield fleet
    fleet.stop()


async def test_a_tool_that_eats_memory_is_ended_and_its_result_names_the_limit(hungry_fleet: Fleet) -> None:
    context = ExecutionContext(working_dir=str(hungry_fleet.folder))
    ways = ["eat", "eat in children"]
    notes = {how: hungry_fleet.folder / how.replace(" ", "-") for how in [*ways, "hoard"]}
    async with ExecutorClient(hungry_fleet.settings) as client:
        neighbour = client.execute("Block", context, seconds=3, mark=str(hungry_fleet.folder / "mark"))
        *ended, beside = await asyncio.gather(
            *(client.execute("Rogue", context, how=how, notes=str(notes[how])) for how in ways), neighbour
        )
        assert [result.error_code for result in ended] == [ErrorCode.OUT_OF_MEMORY] * 2
        assert all(
            "Rogue needed more than 400 MiB" in (r.error or "") and "FORGE_TOOL_MEMORY" in (r.error or "")
            for r in ended
        )
        assert (await client.history.get(ended[0].metadata["execution_id"])).status == ExecutionStatus.FAILED
        assert beside.success

        hoarded = await client.execute("Rogue", context, how="hoard", notes=str(notes["hoard"]))
        assert hoarded.success, hoarded.error
        pids = [noted(notes[how])[0] for how in notes]
        await asyncio.to_thread(wait_until, lambda: not any(map(is_alive, pids)), 60, "a bloated process serves on")
        assert (await client.execute("EchoInProcess", context, message="still here")).success
