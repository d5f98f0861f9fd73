"""Which walls calls get, and the children that wear them: real ones, before a real lane."""

import json
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from forge_tools.base import Capabilities
from forge_tools.config import Settings
from forge_tools.errors import InvalidToolError
from forge_tools.model import new_id
from forge_tools.model.scope import SCOPE
from forge_tools.sandbox.configured import reach_of
from forge_tools.sandbox.walls.probe import given
from forge_tools.sandbox.walls.profile import SHARED_MEMORY, Profile
from forge_tools.time_limits import TimeLimits
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolResult
from tests.unit.workers.child_bench import CLAIM
from tests.unit.workers.test_child import Bench
from workers.lanes.base import scope_of
from workers.lanes.children import ChildrenLane
from workers.lanes.walls import Walls, behind_walls, server_walls

CALL = replace(CLAIM, id=new_id(), tool="Walled", context='{"working_dir": "."}')
"""Other files end what carries the mark of their claim, on the whole machine if its child has died."""


class Walled(BaseTool):
    """Say what is in our home, and leave something there."""

    name = "Walled"
    category = ToolCategory.OTHER
    parameters = ()
    walls = "landlock"
    capabilities = Capabilities(accesses_network=True, paths=("/data:ro", "/spool:rw"))

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        return ToolResult.ok([os.getpid(), os.environ["HOME"]])


class Threading(Walled):
    """Start a thread before there is a call."""

    async def initialize(self, context: ExecutionContext) -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class Unwalled(Walled):
    """Ask for nothing."""

    name = "Unwalled"
    walls = None


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in ("here", "docs", "lib"):
        (tmp_path / name).mkdir()
    workspaces = {"docs": {"roots": [{"path": str(tmp_path / "docs"), "read_only": True}, str(tmp_path / "lib")]}}
    home = tmp_path / "home"
    return Settings(workspace=tmp_path / "here", workspaces=workspaces, home=home, walls_paths=("/all:ro",))


def walls_of(settings: Settings, *tools: BaseTool) -> Walls:
    return Walls(settings, reach_of(settings), [tool.spec for tool in tools])


@pytest.fixture
def held(settings: Settings) -> None:
    """On a machine without Landlock the refusal is what there is to see."""
    if given().tier != "landlock":
        assert profile_of(settings, Walled()) is None
        pytest.xfail(str(given()))


def profile_of(settings: Settings, tool: BaseTool, **context: str) -> Profile | None:
    claim = replace(CLAIM, tool=tool.spec.name, context=json.dumps(context))
    return walls_of(settings, tool).profile(claim)


@pytest.mark.usefixtures("held")
def test_a_call_reaches_the_roots_of_its_workspace_the_paths_of_its_tool_and_those_of_all(settings: Settings) -> None:
    usual, named = profile_of(settings, Walled()), profile_of(settings, Walled(), workspace="docs")
    base = settings.workspace.parent

    assert usual is not None
    assert named is not None
    assert set(usual.write) - {SHARED_MEMORY} == {str(base / "here"), "/spool"}
    assert set(named.write) - {SHARED_MEMORY} == {str(base / "lib"), "/spool"}
    assert set(named.read) - set(usual.read) == {str(base / "docs")}
    assert {"/data", "/all"} <= set(usual.read)
    assert usual.network


@pytest.mark.usefixtures("held")
def test_a_call_of_a_workspace_that_is_not_here_or_cannot_be_read_reaches_none(settings: Settings) -> None:
    gone = profile_of(settings, Walled(), workspace="gone")
    unread = walls_of(settings, Walled()).profile(replace(CLAIM, tool="Walled", context="["))

    assert gone is not None
    assert gone == unread
    assert set(gone.write) - {SHARED_MEMORY} == {"/spool"}


@pytest.mark.usefixtures("held")
def test_the_operator_decides_for_all_tools_and_else_each_for_itself(settings: Settings) -> None:
    everyone, nobody = (settings.model_copy(update={"walls": tier}) for tier in ("landlock", "plain"))

    assert [profile_of(settings, tool) is not None for tool in (Walled(), Unwalled())] == [True, False]
    assert [profile_of(everyone, tool) is not None for tool in (Walled(), Unwalled())] == [True, True]
    assert [profile_of(nobody, tool) is not None for tool in (Walled(), Unwalled())] == [False, False]


def test_walls_around_the_async_lane_are_refused_with_the_way_out() -> None:
    class Awaiting(Walled):
        lane = "async"

    with pytest.raises(InvalidToolError, match='declare lane="process"'):
        _ = Awaiting().spec


def test_commands_have_the_network_of_the_machine_on_the_embedded_stack_alone(settings: Settings) -> None:
    served = settings.model_copy(update={"broker_url": "redis://broker", "database_url": "postgresql://db/forge"})

    def network(**changed: object) -> str:
        one = (served if changed.pop("served", False) else settings).model_copy(update=changed)
        return " ".join(behind_walls(one, reach_of(one)).commands.spawner.walls[:2])

    lower = {"walls_of": {"Bash": "landlock"}}
    found = [network(), network(served=True), network(**lower), network(served=True, **lower)]

    most, lowered = given().of_commands("namespace"), given().of_commands("landlock")
    if most != "plain":
        assert found == [f"{most} host", f"{most} none", f"{lowered} host", f"{lowered} none"]
        assert network(egress="none") == f"{most} none"
    assert network(walls_of={"Bash": "plain"}) == ""


async def test_commands_in_a_queue_have_its_network_unless_one_is_set_for_their_tool(settings: Settings) -> None:
    if given().tier != "landlock":
        pytest.xfail(str(given()))
    of = {"queue:open": "host", "queue:shut": "none"}
    queues, tool = (
        settings.model_copy(update={"egress": "none", "egress_of": one}) for one in (of, of | {"Bash": "host"})
    )

    def networks(one: Settings) -> list[str]:
        reach = behind_walls(one, reach_of(one))
        found = []
        for queue in ("open", "shut", "other"):
            token = SCOPE.set(scope_of(replace(CLAIM, queue=queue)))
            found.append(reach.commands_of_call.spawner.walls[1])
            SCOPE.reset(token)
        return found

    assert networks(queues) == ["host", "none", "none"]
    assert networks(tool) == ["host"] * 3


def test_servers_are_walled_unless_their_category_or_on_the_embedded_stack_the_machine_says_otherwise(
    settings: Settings,
) -> None:
    served = settings.model_copy(update={"broker_url": "redis://broker", "database_url": "postgresql://db/forge"})
    plain, wanted = ({"walls_of": {"category:mcp": tier}} for tier in ("plain", "namespace"))
    changed = (
        settings,
        served,
        *(settings.model_copy(update=one) for one in (plain, wanted, {"walls_minimum": "landlock"})),
    )

    found = [server_walls(one, reach_of(one)) for one in changed]

    assert [one.default for one in found] == ["namespace", "namespace", "plain", "namespace", "namespace"]
    assert [one.least for one in found] == ["plain", "namespace", "plain", "namespace", "landlock"]
    assert {str(settings.home), str(settings.workspace)} <= set(found[0].closed)
    shut = settings.model_copy(update={"egress_of": {"category:mcp": "none"}, "walls_minimum": "landlock"})
    walls = [server_walls(one, reach_of(one)) for one in (settings, shut)]
    assert [(one.network, one.minimum) for one in walls] == [("", ""), ("none", "landlock")]


def test_commands_are_shown_neither_keys_nor_other_workspaces(settings: Settings, tmp_path: Path) -> None:
    closed = {str(path) for path in (settings.home, settings.keys_folder, tmp_path / "here", tmp_path / "docs")}
    for tier in ("namespace", "landlock"):
        lowered = settings.model_copy(update={"walls_of": {"Bash": tier}})
        walls = behind_walls(lowered, reach_of(lowered)).commands
        words = [word.partition(":") for word in walls.spawner.walls[2:]]
        if walls.tier == "namespace":
            assert closed <= {path for kind, _, path in words if kind == "hide"}
        opened = {path for kind, _, path in words if kind in {"ro", "rw"}}
        assert not {path for path in opened for one in closed if f"{one}/".startswith(f"{path}/")}
        assert walls.tier == "plain" or "/all" in opened


@pytest.fixture
async def bench(settings: Settings) -> AsyncIterator[Bench]:
    bench, time_limits = Bench(), TimeLimits(grace=5.0, lease=15)
    raised = settings.model_copy(update={"walls_of": {"queue:untrusted": "landlock"}})
    walls = walls_of(raised, Walled(), Unwalled())
    bench.lane = ChildrenLane(hostname="here", time_limits=time_limits, max_output_bytes=1_000_000, walls=walls)
    await bench.lane.start(bench)
    yield bench
    await bench.lane.stop()
    for pid in bench.pids:
        os.waitpid(pid, 0)


@pytest.mark.usefixtures("held")
async def test_a_child_runs_more_calls_than_walls_have_layers_in_a_folder_that_goes_with_it(bench: Bench) -> None:
    pid = await bench.serving(Walled)

    outcomes = [await bench.run(CALL) for _ in range(17)]

    said = [one.output for one in outcomes]
    ran, home = json.loads(said[0] or str(outcomes[0].error))
    assert set(said) == {said[0]}
    assert ran == pid
    assert Path(home).is_dir()
    await bench.lane.stop()
    assert not Path(home).parent.exists()


@pytest.mark.usefixtures("held")
async def test_a_call_whose_folder_cannot_be_made_fails_and_says_so(bench: Bench) -> None:
    pid = await bench.serving(Walled)
    home = Path(json.loads((await bench.run(CALL)).output or "")[1])
    os.kill(pid, signal.SIGKILL)
    await bench.until(lambda: not bench.lane.free_slots())
    shutil.rmtree(home.parent, ignore_errors=True)  # the lane removes the folder of the killed process meanwhile
    assert not home.parent.exists()
    await bench.serving(Walled)

    outcome = await bench.run(replace(CALL, attempt=2))

    assert f"Walls cannot be applied here: [Errno 2] No such file or directory: '{home.parent}" in (outcome.error or "")


@pytest.mark.usefixtures("held")
async def test_the_second_call_has_walls_though_the_first_was_cancelled_before_its_first_step(bench: Bench) -> None:
    pid = await bench.serving(Walled)

    os.kill(pid, signal.SIGSTOP)  # so that it reads both at once
    bench.lane.run([CALL])
    bench.lane.cancel(CALL.id, CALL.attempt)
    os.kill(pid, signal.SIGCONT)
    await bench.until(lambda: bench.outcomes)
    second = await bench.run(replace(CALL, attempt=2))

    assert bench.outcomes[0].status == "cancelled"
    assert json.loads(second.output or "")[1] != os.environ["HOME"]


@pytest.mark.usefixtures("held")
async def test_a_result_says_which_tier_it_had_where_its_tool_declares_another(bench: Bench) -> None:
    for _ in range(2):
        bench.fork(tool=Unwalled)
    await bench.until(lambda: bench.lane.free_slots() == 2)
    here = replace(CALL, tool="Unwalled")

    said = [json.loads((await bench.run(one)).metadata) for one in (here, replace(here, queue="untrusted"))]

    assert [one.get("walls") for one in said] == [None, "landlock"]


@pytest.mark.usefixtures("held")
async def test_a_child_whose_main_thread_misses_a_signal_gets_its_walls(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes just before the thread waits wakes nobody: Python looks for signals before it waits, and after."""
    send, missed = signal.pthread_kill, [1]
    monkeypatch.setattr(signal, "pthread_kill", lambda *to: missed.pop() if missed else send(*to))
    await bench.serving(Walled)

    assert (await bench.run(CALL)).error is None


@pytest.mark.usefixtures("held")
async def test_walls_are_not_put_around_threads_that_were_there_before(bench: Bench) -> None:
    await bench.serving(Threading)

    failed = await bench.run(CALL)

    assert "initialize() of a tool has started threads" in (failed.error or "")
    assert "FORGE_WALLS=plain" in (failed.error or "")
    assert bench.lane.free_slots() == 0, "such a child is replaced"
