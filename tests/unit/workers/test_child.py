"""The child's half of the process lane: a real forked process speaking to a real lane."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_tools.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.errors import ErrorCode
from forge_tools.executor import ToolExecutor
from forge_tools.records import Claim, ExecutionStatus, Outcome, Ring
from forge_tools.registry import ScopedRegistry
from tests.fleet import is_alive
from workers.lanes.child import Child
from workers.lanes.children import ChildrenLane


def sockets() -> list[str]:
    """What the sockets of this process are connected to."""
    found = []
    for entry in os.listdir("/dev/fd"):
        try:
            found.append(str(socket.socket(fileno=os.dup(int(entry))).getpeername()))
        except OSError:
            continue
    return found


class Act(BaseTool):
    """Behave as told, in a process of its own."""

    name = "Act"
    category = ToolCategory.OTHER
    parameters = (ToolParameter(name="how", type="string", description="How."),)

    async def _execute(self, context: ExecutionContext, how: str) -> ToolResult:
        if how == "sleep":
            await asyncio.sleep(1.0)
        elif how == "leave a grandchild and die":
            if os.fork() == 0:
                os.setsid()
                time.sleep(8)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        answers: dict[str, Callable[[], Any]] = {
            "pid": os.getpid,
            "group": os.getpgrp,
            "cwd": os.getcwd,
            "move": lambda: os.chdir("/"),
            "secrets": lambda: sorted(name for name in os.environ if "DATABASE_URL" in name),
            "sockets": sockets,
            "large": lambda: "x" * 20_000_000,
        }
        return ToolResult.ok(answers.get(how, lambda: how)())


class Unready(Act):
    """Cannot start."""

    name = "Unready"

    async def initialize(self, context: ExecutionContext) -> None:
        raise RuntimeError("no licence")


class Bench:
    """A lane and the children forked for it."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.claimable: dict[str, Claim] = {}
        self.pids: list[int] = []
        self.lane = ChildrenLane(self._claim, self.outcomes.append, hostname="here", kill_grace=5.0)

    async def _claim(self, rings: Sequence[Ring]) -> list[Claim]:
        return [self.claimable.pop(ring.id) for ring in rings if ring.id in self.claimable]

    def fork(self, *ring: tuple[str, int], tool: type[BaseTool] = Act) -> int:
        """Start a child as the pool does: it serves for ever, or until the rings it is given are answered."""
        registry = ScopedRegistry()
        registry.register(tool())
        child = Child(self.lane.address, ToolExecutor(registry, history_limit=0), 50_000_000)
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                child.start(parent)
                child.ring(list(ring)) if ring else signal.pause()
            finally:
                os._exit(0)
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

    async def until(self, is_so: Callable[[], object], seconds: float = 10) -> None:
        async with asyncio.timeout(seconds):
            while not is_so():
                await asyncio.sleep(0.005)


def claim(how: str, **changes: Any) -> Claim:
    asked = Claim(
        id="a",
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
    await bench.lane.start()
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


async def test_a_child_that_rings_returns_when_its_call_is_over(bench: Bench) -> None:
    bench.claimable["a"] = claim("well")
    pid = bench.fork(("a", 0))

    await bench.until(lambda: not is_alive(pid))

    assert [outcome.output for outcome in bench.outcomes] == ['"well"']


async def test_a_child_that_rings_in_vain_returns(bench: Bench) -> None:
    pid = bench.fork(("gone", 0))

    await bench.until(lambda: not is_alive(pid))

    assert bench.outcomes == []


async def test_a_cancelled_body_ends_and_the_child_serves_on(bench: Bench) -> None:
    await bench.serving()
    bench.lane.run([claim("sleep")])
    await asyncio.sleep(0.1)
    bench.lane.cancel("a", 1)
    await bench.until(lambda: bench.outcomes)

    assert bench.outcomes[0].status == ExecutionStatus.CANCELLED
    assert (await bench.run(claim("well"))).status == ExecutionStatus.SUCCEEDED


async def test_a_soft_limit_that_comes_late_does_not_end_the_next_body(bench: Bench) -> None:
    bench.claimable["a"] = claim("sleep")
    pid = bench.fork(("a", 0))
    await bench.until(bench.lane.running)
    await asyncio.sleep(0.2)

    os.kill(pid, signal.SIGUSR1)

    await bench.until(lambda: bench.outcomes)
    assert bench.outcomes[0].status == ExecutionStatus.SUCCEEDED


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
    assert [peer for peer in peers if "engine.sock" in peer]
    assert (await bench.run(claim("secrets"))).output == "[]"


async def test_a_grandchild_does_not_hide_the_death_of_its_parent(bench: Bench) -> None:
    await bench.serving()
    started = time.monotonic()

    outcome = await bench.run(claim("leave a grandchild and die"))

    assert outcome.error_code == ErrorCode.LOST
    assert time.monotonic() - started < 5


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
        try:
            Child(bench.lane.address, ToolExecutor(ScopedRegistry()), 1000).start(parent=1)
        finally:
            os._exit(7)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
