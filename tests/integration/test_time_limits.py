"""The process lane leaves nothing behind: however a body is stopped, it and its processes are gone when its result arrives."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import ExecutorClient, Handle
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ExecutionRecord, ToolResult
from tests.fleet import Fleet, WorkerProcess
from tests.rogue_tools import SHAPES, noted
from tests.server_process import children_with
from tests.waiting import PATIENCE, is_alive, wait_until, within

TIMEOUT, GRACE, SLACK = 4.0, 1.0, 15.0
"""Time enough to start a family in; and how much later a slow machine may be."""
FAMILY = list(SHAPES)
STUBBORN = ["swallow", "block", "hold the interpreter", "await a thread"]


@pytest.fixture(scope="module")
def module_fleet(tmp_path_factory: pytest.TempPathFactory, valkey_server: Any) -> Iterator[Fleet]:
    """One worker of the process lane, on SQLite: nothing here is about the database."""
    folder = tmp_path_factory.mktemp("ladder")
    fleet = Fleet(folder, valkey_server.url, f"sqlite:///{folder / 'forge.db'}", kill_grace=GRACE)
    fleet.start("process", concurrency=6)
    yield fleet
    fleet.stop()


@pytest.fixture
def lone_fleet(tmp_path: Path, valkey: Any) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, valkey.url, f"sqlite:///{tmp_path / 'forge.db'}", kill_grace=GRACE)
    yield fleet
    fleet.stop()


class Rogues:
    """Calls of the rogue tool, and what they left."""

    def __init__(self, client: ExecutorClient, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.context = ExecutionContext(working_dir=str(folder), timeout=60)

    def notes(self, how: str) -> Path:
        return self.folder / how.replace(" ", "-")

    async def start(self, how: str, shapes: list[str], *, tool: str = "Rogue", timeout: float = 60) -> Handle:
        context = self.context.model_copy(update={"timeout": timeout})
        arguments = {"how": how, "notes": str(self.notes(how)), "shapes": shapes}
        return await self.client.submit(tool, arguments, context)

    async def run(self, how: str, shapes: list[str], timeout: float = 60) -> tuple[ToolResult, ExecutionRecord]:
        handle = await self.start(how, shapes, timeout=timeout)
        result = await handle.result(60)
        return result, await handle.record()

    async def ready(self, how: str, shapes: list[str]) -> list[int]:
        """Wait until everything was started; return the pids, the child's own first."""
        count = 1 + len(shapes) + shapes.count("grandchild")
        await asyncio.to_thread(wait_until, lambda: len(noted(self.notes(how))) >= count, 30, f"{how}: not all started")
        return noted(self.notes(how))

    def left(self, how: str) -> list[int]:
        return [pid for pid in noted(self.notes(how))[1:] if is_alive(pid)]


@pytest.fixture
async def rogues(module_fleet: Fleet, tmp_path: Path) -> Any:
    async with ExecutorClient(module_fleet.settings) as client:
        yield Rogues(client, tmp_path)


async def test_whatever_a_body_does_its_time_ends_it_and_all_that_it_started(rogues: Rogues) -> None:
    ways = ["await", *STUBBORN]
    neighbour = rogues.client.execute("Block", rogues.context, seconds=3, mark=str(rogues.folder / "mark"))

    *ended, beside = await asyncio.gather(*(rogues.run(how, FAMILY, TIMEOUT) for how in ways), neighbour)

    assert beside.success
    for how, (result, record) in zip(ways, ended, strict=True):
        assert (result.error, result.error_code) == (f"Tool timed out after {TIMEOUT:g}s", ErrorCode.TIMEOUT), how
        assert rogues.left(how) == [], f"{how}: it left {rogues.left(how)}"
        assert (record.completed_at - record.started_at).total_seconds() <= TIMEOUT + GRACE + SLACK, how
    assert not [how for how in STUBBORN if is_alive(noted(rogues.notes(how))[0])]


async def test_a_cancel_ends_a_body_and_all_that_it_started(rogues: Rogues) -> None:
    ways = ["await", *STUBBORN]
    handles = [await rogues.start(how, FAMILY) for how in ways]
    await asyncio.gather(*(rogues.ready(how, FAMILY) for how in ways))

    await asyncio.gather(*(handle.cancel() for handle in handles))

    results = await asyncio.gather(*(handle.result(GRACE + 40) for handle in handles))
    assert {result.error_code for result in results} == {ErrorCode.CANCELLED}
    assert {how: rogues.left(how) for how in ways} == {how: [] for how in ways}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "die",
            r"Process \d+ on .+ was ended by signal 9 \(SIGKILL; the kernel's out-of-memory killer is one sender\)",
        ),
        ("exit", r"Process \d+ on .+ exited with status 3"),
        ("let go of everything", r"Process \d+ on .+ "),
    ],
)
async def test_a_child_that_dies_says_why_and_takes_what_it_started_along(rogues: Rogues, how: str, said: str) -> None:
    found_by_mark = [shape for shape in FAMILY if "clean" not in shape]

    result, _ = await rogues.run(how, found_by_mark)

    assert result.error_code == ErrorCode.LOST
    assert re.match(said, result.error or ""), result.error
    assert rogues.left(how) == []
    assert not is_alive(noted(rogues.notes(how))[0])


async def test_what_a_finished_body_left_on_purpose_lives_until_its_worker_ends(lone_fleet: Fleet) -> None:
    worker = await asyncio.to_thread(lone_fleet.start, "process", concurrency=1)
    async with ExecutorClient(lone_fleet.settings) as client:
        rogues = Rogues(client, lone_fleet.folder)
        assert (await rogues.run("return", ["session", "forked daemon"]))[0].success
        await rogues.run("block", ["session"], timeout=0.5)
        assert (len(rogues.left("return")), rogues.left("block")) == (2, [])

    assert await asyncio.to_thread(worker.stop) == 0

    assert rogues.left("return") == []


async def test_recovery_ends_what_a_dead_or_frozen_worker_left_before_it_runs_again(lone_fleet: Fleet) -> None:
    shapes = ["session", "forked daemon", "daemon"]
    ways = {"killed": WorkerProcess.kill, "frozen": lone_fleet.freeze}
    workers = {how: await asyncio.to_thread(lone_fleet.start, "process", queues=how, concurrency=1) for how in ways}
    async with ExecutorClient(lone_fleet.settings) as client:
        rogues = {how: Rogues(client, lone_fleet.folder / how) for how in ways}
        handles = []
        for how, end in ways.items():
            rogues[how].folder.mkdir()
            arguments = {"how": "block at first", "notes": str(rogues[how].notes("block at first")), "shapes": shapes}
            handles.append(await client.submit("RogueIdempotent", arguments, rogues[how].context, queue=how))
            await rogues[how].ready("block at first", shapes)
            await asyncio.to_thread(end, workers[how])
        try:
            await asyncio.to_thread(lone_fleet.start, "process", queues="killed,frozen")
            still_alive = [(await handle.result(60)).output for handle in handles]
        finally:
            os.kill(workers["frozen"].pid, signal.SIGCONT)

    assert still_alive == [[], []]


async def test_celery_ends_a_body_whose_engine_hangs_and_whose_worker_has_no_watchdog(lone_fleet: Fleet) -> None:
    """Each at its own time, while a child whose body ended in time rests."""
    worker = await asyncio.to_thread(lone_fleet.start, "process", concurrency=3, tools="tests.hanging_tools:TOOLS")
    [watchdog] = children_with("watchdog.py", worker.pid)
    timeouts = {"swallow": 5.0, "hold the interpreter": 9.0}
    async with ExecutorClient(lone_fleet.settings) as client:
        rogues = Rogues(client, lone_fleet.folder)
        for how, timeout in timeouts.items():
            await rogues.start(how, [], timeout=timeout)
        bodies = {how: (await rogues.ready(how, []))[0] for how in timeouts}
        began, (resting, _) = time.monotonic(), await rogues.run("return", [])
        try:
            watchdog.suspend()
            worker.signal(signal.SIGRTMIN)
            ends = await asyncio.to_thread(ends_of, bodies)
            rests = is_alive(resting.output)
        finally:
            worker.kill()
            watchdog.kill()

    for how, timeout in timeouts.items():
        limit = lone_fleet.settings.time_limits.limits(timeout).hard
        assert limit - 2 <= ends[how] - began <= limit + 2 * PATIENCE, how
    assert rests
    assert worker.log.read_text().count("Celery's hard time limit ends a body") == 2


def ends_of(bodies: dict[str, int]) -> dict[str, float]:
    """When each of these processes ended."""
    ends: dict[str, float] = {}
    for _ in within(60, lambda: f"alive: {bodies.keys() - ends.keys()}"):
        ends.update({how: time.monotonic() for how, pid in bodies.items() if how not in ends and not is_alive(pid)})
        if len(ends) == len(bodies):
            break
        time.sleep(0.05)
    return ends
