"""Which tier calls get from real workers, and what is said where none gives it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ExecutionStatus
from forge_tools.sandbox.walls.probe import given
from forge_tools.storage import open_store
from tests.fleet import Fleet
from tests.part_tools import png

GUARDED = "tests/landlock_less_tools.py"


@pytest.fixture
def fleet(tmp_path: Path, valkey_server: Any) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, valkey_server.url, f"sqlite:///{tmp_path / 'forge.db'}", kill_grace=1.0)
    yield fleet
    fleet.stop()


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(fleet.settings) as client:
        yield client


async def test_a_minimum_moves_tools_behind_walls_and_refuses_those_that_cannot_move(
    client: ExecutorClient, fleet: Fleet, context: ExecutionContext
) -> None:
    for lane in ("async", "process"):
        fleet.start(lane, walls_minimum="landlock")
    (fleet.folder / "image.png").write_bytes(png())

    moved = await client.execute("Echo", context, message="x")
    command = await client.execute("Bash", context, command="true")

    shown = await client.execute("Read", context, file_path="image.png")

    assert moved.error_code == (None if given().tier == "landlock" else ErrorCode.WALLS_NOT_AVAILABLE)
    assert moved.metadata.get("walls") == ("landlock" if moved.success else None)
    assert bool(shown.images) is moved.success
    assert command.error_code == (ErrorCode.WALLS_NOT_AVAILABLE if given().no_namespaces else None)


async def test_calls_that_no_live_worker_can_give_their_walls_are_refused_until_one_can(
    client: ExecutorClient, fleet: Fleet, context: ExecutionContext
) -> None:
    fleet.start("process", tools=GUARDED, without_landlock="1")

    refused = await client.execute("guarded", context)

    assert refused.error_code == ErrorCode.WALLS_NOT_AVAILABLE
    assert "gives plain (landlock: ENOSYS)" in (refused.error or "")
    assert "FORGE_WALLS_OF=" in (refused.error or "")
    record = await client.history.get(refused.metadata["execution_id"])
    assert record.status == ExecutionStatus.REJECTED

    if given().tier == "landlock":
        fleet.start("process", tools=GUARDED)
        assert (await client.execute("guarded", context)).output == "said"


async def test_calls_in_a_queue_that_asks_for_walls_have_them(
    client: ExecutorClient, fleet: Fleet, context: ExecutionContext
) -> None:
    for lane in ("async", "process"):
        fleet.start(lane, queues="default,low", walls_of='{"queue:low": "landlock"}')

    usual = await client.execute("Echo", context, message="x")
    low = await client.call("Echo", {"message": "x"}, context, queue="low")

    assert (usual.output, usual.metadata.get("walls")) == ("x", None)
    if given().tier == "landlock":
        assert (low.output, low.metadata.get("walls")) == ("x", "landlock")
    else:
        assert low.error_code == ErrorCode.WALLS_NOT_AVAILABLE


async def test_an_operator_may_allow_less(client: ExecutorClient, fleet: Fleet, context: ExecutionContext) -> None:
    fleet.start("process", tools=GUARDED, without_landlock="1", walls_of='{"guarded": "plain"}')

    result = await client.execute("guarded", context)

    assert (result.output, result.metadata.get("walls")) == ("said", "plain")


async def test_an_operator_may_lower_commands_to_landlock_which_then_have_no_socket(
    client: ExecutorClient, fleet: Fleet, context: ExecutionContext
) -> None:
    lowered = '{"Bash": "landlock"}'
    if given().of_commands("landlock") != "landlock":
        pytest.xfail(str(given()))
    fleet.start("async", walls_of=lowered)

    result = await client.execute("Bash", context, command="exec 3<>/dev/tcp/127.0.0.1/9")
    refused = await client.execute("Bash", context, command=f"ls {fleet.folder.parent} 2>&1")

    assert result.metadata["walls"] == "landlock"
    assert "socket: Permission denied" in result.output
    assert "Permission denied" in refused.output
    assert "the walls of commands cannot cover" in fleet.workers[0].log.read_text(), "its home lies in the workspace"
    async with await open_store(fleet.settings.database) as store:
        found = await store.directories.read()
    assert [found.walls.tier_of(spec) for spec in found.enabled if spec.name == "Bash"] == ["landlock"]
    with pytest.raises(AssertionError, match=r"FORGE_EGRESS=a\.test cannot be kept: commands run behind Landlock"):
        fleet.start("async", walls_of=lowered, egress="a.test")


async def test_a_worker_with_a_setting_that_means_nothing_says_so_and_does_not_start(fleet: Fleet) -> None:
    with pytest.raises(AssertionError, match=r"There is no tool 'Bsh' \(did you mean 'Bash'\?\)"):
        fleet.start("process", walls_of='{"Bsh": "plain"}')
