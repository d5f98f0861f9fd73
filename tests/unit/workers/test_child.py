"""The child's half of the process lane: a real forked process speaking to a real lane."""

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionStatus, new_id
from forge_tools.model.execution import Claim, Outcome
from forge_tools.sandbox.processes.trees import marks_of
from forge_tools.sandbox.walls.cgroups import Cgroup
from forge_tools.time_limits import TimeLimits
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.unit.workers.child_bench import Limited, no_walls
from tests.unit.workers.host import LaneHost
from tests.waiting import is_alive
from workers.capture import ChildOutput
from workers.lanes.child import SECRETS, Child
from workers.lanes.children import ChildrenLane

ID = new_id()
"""Of this run alone: what a stopped body left is found by it on the whole machine."""


def test_a_child_is_left_no_way_to_a_server_that_settings_name() -> None:
    for server in ("DATABASE", "DATABASE_MIGRATION", "BROKER"):
        assert {f"FORGE_{server}_URL", f"FORGE_{server}_PASSWORD_FILE"} <= set(SECRETS)
    assert {"DATABASE_URL", "PGPASSWORD"} <= set(SECRETS)


def sockets() -> list[str]:
    """What the sockets of this process are connected to."""
    found = []
    for entry in os.listdir("/dev/fd"):
        try:
            found.append(str(socket.socket(fileno=os.dup(int(entry))).getpeername()))
        except OSError:
            continue
    return found


def files() -> list[str]:
    """The files that this process holds open."""
    return [os.readlink(f"/dev/fd/{fd}") for fd in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{fd}")]


def interrupt() -> None:
    raise KeyboardInterrupt


def make_a_mess() -> None:
    os.chdir("/")
    os.umask(0o777)
    sys.path.clear()
    os.environ.clear()
    sys.stdout = sys.stderr = io.StringIO()


def children_of(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for one in lists for child in one.read_text().split()]


def fork_and(end: Callable[[], object]) -> object:
    """Let a copy of this process end the body that way, and return its exit status."""
    pid = os.fork()
    return end() if pid == 0 else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Act(BaseTool):
    """Behave as told, in a process of its own."""

    name = "Act"
    category = ToolCategory.OTHER
    parameters = (ToolParameter(name="how", type="string", description="How."),)

    async def _execute(self, context: ExecutionContext, how: str) -> ToolResult:
        if how in ("sleep", "cancel every task"):
            for task in asyncio.all_tasks() if how != "sleep" else ():
                task.cancel()
            await asyncio.sleep(60)
        elif how == "leave a thread":
            await asyncio.to_thread(time.sleep, 60)
        elif how == "leave a task":
            asyncio.get_running_loop().create_task(asyncio.sleep(60))
            await asyncio.sleep(60)
        elif how == "leave an unmarked process":
            subprocess.Popen(["/bin/sleep", "60"], env={}, start_new_session=True)
            await asyncio.sleep(60)
        elif how == "use a thread and wait":
            await asyncio.to_thread(time.sleep, 0)
            await asyncio.sleep(60)
        elif how == "leave an orphan that ends":
            subprocess.run(["/bin/sh", "-c", "(sleep 0.2 && true) & true"])
            await asyncio.sleep(0.5)
        elif how == "leave a grandchild and die":
            if os.fork() == 0:
                os.setsid()
                time.sleep(45)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        answers: dict[str, Callable[[], Any]] = {
            "pid": os.getpid,
            "group": os.getpgrp,
            "cwd": os.getcwd,
            "move": lambda: os.chdir("/"),
            "secrets": lambda: sorted(name for name in os.environ if "DATABASE_URL" in name),
            "sockets": sockets,
            "files": files,
            "interrupt": interrupt,
            "make a mess": make_a_mess,
            "fork and return": lambda: fork_and(str),
            "fork and exit": lambda: fork_and(sys.exit),
            "fork and exit with 3": lambda: fork_and(partial(sys.exit, 3)),
            "fork and exit with words": lambda: fork_and(partial(sys.exit, "no")),
            "fork and fail": lambda: fork_and(lambda: {}["missing"]),
            "exit later": lambda: asyncio.get_running_loop().call_later(0.1, sys.exit),
            "stop the loop later": lambda: asyncio.get_running_loop().call_later(0.1, asyncio.get_running_loop().stop),
            "break tasks": lambda: asyncio.get_running_loop().set_task_factory(len),
            "break json": lambda: setattr(json, "dumps", None),
            "surroundings": lambda: [
                os.getcwd(),
                os.umask(0o022),
                sorted(os.environ),
                sys.path,
                *map(repr, (sys.stdout, sys.stderr)),
            ],
            "large": lambda: "x" * 20_000_000,
            "too large": lambda: "x" * 2**40,
            "marks": lambda: sorted(mark.decode() for mark in marks_of(os.getpid())),
            "zombies": lambda: [p for p in children_of(os.getpid()) if not is_alive(p)],
        }
        result = answers.get(how, lambda: how)()
        return ToolResult.ok(None if isinstance(result, asyncio.TimerHandle) else result)


class Unready(Act):
    """Cannot start."""

    name = "Unready"

    async def initialize(self, context: ExecutionContext) -> None:
        raise RuntimeError("no licence")


class Bench(LaneHost):
    """A lane and the children forked for it."""

    def __init__(self) -> None:
        super().__init__()
        self.pids: list[int] = []
        self.memory_limit = 0
        self.lane = ChildrenLane(
            hostname="here",
            time_limits=TimeLimits(grace=5.0, lease=15),
            max_output_bytes=50_000_000,
            walls=no_walls(),
        )

    def fork(self, tool: type[BaseTool] = Act) -> int:
        """Start a child as the pool does."""
        registry = ScopedRegistry()
        registry.register(tool())
        executor = ToolExecutor(registry, history_limit=0)
        child = Child(executor, 50_000_000, memory_limit=self.memory_limit)
        ours, theirs = socket.socketpair()
        output = ChildOutput()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            child.serve(parent, theirs, output, Cgroup())
        theirs.close()
        output.born()
        self.lane.adopt(SimpleNamespace(pid=pid, exitcode=None), ours, partial(Limited, pid), output, Cgroup())
        self.pids.append(pid)
        return pid

    async def serving(self, tool: type[BaseTool] = Act) -> int:
        pid = self.fork(tool=tool)
        await self.until(self.lane.free_slots)
        return pid

    async def run(self, claim: Claim) -> Outcome:
        told = len(self.outcomes)
        self.lane.run([claim])
        await self.until(lambda: len(self.outcomes) > told)
        return self.outcomes[-1]


def claim(how: str, **changes: Any) -> Claim:
    asked = Claim(
        id=ID,
        attempt=1,
        token="token",
        tool="Act",
        tool_version="1.0.0",
        parameters=json.dumps({"how": how}),
        context=json.dumps({"working_dir": ".", "max_output_size": 30_000_000}),
        timeout=20.0,
        max_attempts=1,
        idempotent=False,
        reply_to=None,
    )
    return replace(asked, **changes)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.lane.start(bench)
    yield bench
    await bench.lane.stop()
    for pid in bench.pids:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def test_a_call_runs_in_the_child_which_leads_a_group_of_its_own(bench: Bench) -> None:
    pid = await bench.serving()

    assert (await bench.run(claim("pid"))).output == str(pid)
    assert (await bench.run(claim("group"))).output == str(pid)


async def test_a_cancelled_body_ends_and_the_child_serves_on(bench: Bench) -> None:
    await bench.serving()
    bench.lane.run([claim("sleep")])
    await asyncio.sleep(0.1)
    bench.lane.cancel(ID, 1)
    await bench.until(lambda: bench.outcomes)

    assert bench.outcomes[0].status == ExecutionStatus.CANCELLED
    assert (await bench.run(claim("well"))).status == ExecutionStatus.SUCCEEDED


async def test_a_body_that_cancels_every_task_has_failed_and_the_child_serves_on(bench: Bench) -> None:
    pid = await bench.serving()
    outcome = await bench.run(claim("cancel every task"))

    assert (outcome.status, outcome.error_code) == (ExecutionStatus.FAILED, ErrorCode.EXECUTION_ERROR)
    assert json.loads((await bench.run(claim("pid"))).output or "") == pid


async def test_a_body_is_marked_while_it_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_INSTANCE", "instance-1")
    pid = await bench.serving()

    outcome = await bench.run(claim("marks"))

    assert json.loads(outcome.output or "") == [f"FORGE_EXECUTION={ID}.1", "FORGE_INSTANCE=instance-1"]
    assert marks_of(pid) == {b"FORGE_INSTANCE=instance-1"}


@pytest.mark.parametrize("how", ["leave a thread", "leave a task", "leave an unmarked process"])
async def test_a_child_in_which_a_stopped_body_lives_on_is_ended(bench: Bench, how: str) -> None:
    pid = await bench.serving()
    outcome = await bench.run(claim(how, timeout=1.0))

    assert outcome.error_code == ErrorCode.TIMEOUT
    assert not is_alive(pid)


async def test_a_child_in_which_nothing_of_a_stopped_body_is_left_serves_on(bench: Bench) -> None:
    await bench.serving()

    assert (await bench.run(claim("use a thread and wait", timeout=0.3))).error_code == ErrorCode.TIMEOUT

    assert (await bench.run(claim("well"))).output == '"well"'


async def test_orphans_that_end_leave_no_zombie_in_the_child(bench: Bench) -> None:
    await bench.serving()
    await bench.run(claim("leave an orphan that ends"))

    assert (await bench.run(claim("zombies"))).output == "[]"


async def test_an_allocation_beyond_the_limit_fails_that_call_and_says_so(bench: Bench) -> None:
    bench.memory_limit = 2**31
    pid = await bench.serving()

    outcome = await bench.run(claim("too large"))

    assert outcome.error_code == ErrorCode.OUT_OF_MEMORY
    assert "Act needed more than 2,048 MiB of memory" in (outcome.error or "")
    assert not is_alive(pid), "what it may still hold goes with it"


async def test_a_result_of_twenty_megabytes_comes_through(bench: Bench) -> None:
    await bench.serving()

    assert len((await bench.run(claim("large"))).output or "") == 20_000_002


async def test_a_tool_that_moves_elsewhere_moves_nobody_else(bench: Bench) -> None:
    await bench.serving()
    await bench.run(claim("move"))

    assert json.loads((await bench.run(claim("cwd"))).output or "") == str(Path.cwd())


async def test_a_tool_finds_no_connection_of_its_parents(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_DATABASE_URL", "postgresql://secret")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as database:
        await bench.serving()
        peers = json.loads((await bench.run(claim("sockets"))).output or "")
        database.sendall(b"still the parent's")

    assert not [peer for peer in peers if "127.0.0.1" in peer]
    assert peers == [""] * 4, "its ends of both pairs, and the two by which its loop wakes itself"
    assert (await bench.run(claim("secrets"))).output == "[]"


async def test_a_grandchild_does_not_hide_the_death_of_its_parent(bench: Bench) -> None:
    await bench.serving()
    started = time.monotonic()

    outcome = await bench.run(claim("leave a grandchild and die"))

    assert outcome.error_code == ErrorCode.LOST
    assert time.monotonic() - started < 30


async def test_a_child_whose_engine_is_gone_ends(bench: Bench) -> None:
    pid = await bench.serving()

    await bench.lane.stop()

    await bench.until(lambda: not is_alive(pid))


async def test_a_child_whose_tools_cannot_start_ends_and_never_serves(bench: Bench) -> None:
    pid = bench.fork(tool=Unready)

    await bench.until(lambda: not is_alive(pid))

    assert bench.lane.free_slots() == 0


async def test_a_child_whose_parent_died_while_it_was_forked_ends(bench: Bench) -> None:
    pid = os.fork()
    if pid == 0:
        Child(ToolExecutor(ScopedRegistry()), 1000).serve(1, socket.socket(), ChildOutput(), Cgroup())

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


async def test_a_child_holds_no_file_or_socket_of_its_parent(bench: Bench, tmp_path: Path) -> None:
    database = tmp_path / "forge.db"
    with database.open("w+"):
        await bench.serving()
        held = json.loads((await bench.run(claim("files"))).output or "")

    assert str(database) not in held


async def test_what_a_body_changed_of_its_process_is_not_there_for_the_next(bench: Bench) -> None:
    await bench.serving()
    before = await bench.run(claim("surroundings"))
    await bench.run(claim("make a mess"))

    assert (await bench.run(claim("surroundings"))).output == before.output


@pytest.mark.parametrize(
    ("how", "status"), [("return", 0), ("exit", 0), ("exit with 3", 3), ("exit with words", 1), ("fail", 1)]
)
async def test_a_copy_that_a_body_forked_ends_where_the_body_does(bench: Bench, how: str, status: int) -> None:
    await bench.serving()

    assert (await bench.run(claim(f"fork and {how}", timeout=5.0))).output == str(status)
    assert (await bench.run(claim("well"))).output == '"well"'


@pytest.mark.parametrize("how", ["exit later", "stop the loop later"])
async def test_what_a_body_left_on_the_loop_ends_no_later_call(bench: Bench, how: str) -> None:
    pid = await bench.serving()
    await bench.run(claim(how))
    outcome = await bench.run(claim("leave an orphan that ends"))

    assert outcome.status == ExecutionStatus.SUCCEEDED
    assert (await bench.run(claim("pid"))).output == str(pid)


async def test_a_child_that_cannot_begin_a_body_ends_and_costs_no_attempt(bench: Bench) -> None:
    await bench.serving()
    await bench.run(claim("break tasks"))

    assert (await bench.run(claim("well", timeout=5.0))).give_back


async def test_a_child_that_cannot_report_an_end_ends_itself(bench: Bench) -> None:
    await bench.serving()
    outcome = await bench.run(claim("break json", timeout=5.0))

    assert outcome.error_code == ErrorCode.LOST
    assert "exited with status 1" in str(outcome.error)


async def test_a_body_that_raises_what_a_keyboard_does_has_failed(bench: Bench) -> None:
    await bench.serving()
    outcome = await bench.run(claim("interrupt"))

    assert (outcome.status, outcome.error_code) == (ExecutionStatus.FAILED, ErrorCode.EXECUTION_ERROR)
    assert (await bench.run(claim("well"))).status == ExecutionStatus.SUCCEEDED
