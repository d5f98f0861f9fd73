"""Workers as processes: signals in every phase, brokers that die and hang, tools that misbehave, and no growth."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, Lane
from tests.descriptors import descriptors, of_worker
from tests.fleet import ROOT, Fleet, WorkerProcess
from tests.integration.conftest import Parts
from tests.services import ValkeyServer
from tests.waiting import is_alive, reached, wait_until

TOOL = {"async": "Sleep", "process": "Block"}
ECHO = {"async": "Echo", "process": "EchoInProcess"}


@pytest.fixture
def lone_fleet(tmp_path: Path, valkey: Any) -> Iterator[Fleet]:
    """On SQLite alone: nothing here is about the database."""
    fleet = Fleet(tmp_path, valkey.url, f"sqlite:///{tmp_path / 'forge.db'}", kill_grace=1.0)
    yield fleet
    fleet.stop()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident_megabytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def keep_busy(fleet: Fleet, lane: Lane, count: int = 3) -> list[str]:
    """Submit long calls, more than there are slots, and wait until one runs."""
    context = ExecutionContext(working_dir=str(fleet.folder))
    async with ExecutorClient(fleet.settings) as client:
        marks = [{"seconds": 60, "mark": str(fleet.folder / f"mark-{n}")} for n in range(count)]
        ids = [(await client.submit(TOOL[lane], mark, context)).id for mark in marks]
        await asyncio.to_thread(wait_until, lambda: list(fleet.folder.glob("mark-*")), 20, "nothing started")
    return ids


@pytest.mark.parametrize(
    ("lane", "signals"), [("async", [signal.SIGTERM, signal.SIGQUIT]), ("process", [signal.SIGINT, signal.SIGINT])]
)
async def test_a_second_signal_ends_a_busy_worker_at_once(
    lone_fleet: Fleet, lane: Lane, signals: list[signal.Signals]
) -> None:
    worker = await asyncio.to_thread(lone_fleet.start, lane, drain="60", concurrency=2)
    ids = await keep_busy(lone_fleet, lane)
    pids = children(worker.pid)

    worker.signal(signals[0])
    await asyncio.to_thread(wait_until, lambda: b"Worker stops" in worker.log.read_bytes(), 40, "it is not heard")
    started = time.monotonic()
    worker.signal(signals[1])
    await asyncio.to_thread(worker.process.wait, 40)

    assert time.monotonic() - started < 30
    assert not [pid for pid in pids if is_alive(pid)]
    async with ExecutorClient(lone_fleet.settings) as client:
        assert {(await client.history.get(one)).status for one in ids} <= {"lost", "queued"}


@pytest.mark.parametrize("lane", ["async", "process"])
async def test_sigquit_ends_a_busy_worker_without_a_traceback(lone_fleet: Fleet, lane: Lane) -> None:
    worker = await asyncio.to_thread(lone_fleet.start, lane, drain="60", concurrency=2)
    ids = await keep_busy(lone_fleet, lane)

    worker.signal(signal.SIGQUIT)
    await asyncio.to_thread(worker.process.wait, 40)

    assert "Traceback" not in worker.log.read_text()
    async with ExecutorClient(lone_fleet.settings) as client:
        assert {(await client.history.get(one)).status for one in ids} <= {"lost", "queued"}


@pytest.mark.parametrize("lane", ["async", "process"])
def test_a_worker_that_cannot_reach_its_broker_still_stops(lone_fleet: Fleet, lane: Lane) -> None:
    worker = lone_fleet.start(lane, broker_url="redis+socket:///nowhere/valkey.sock")
    wait_until(lambda: b"Cannot connect" in worker.log.read_bytes(), 20, "it never tried")

    assert worker.stop() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGQUIT, 1)])
def test_a_worker_that_is_stopped_while_it_starts_leaves_in_good_order(
    lone_fleet: Fleet, number: signal.Signals, code: int
) -> None:
    stalled = lone_fleet.folder / "stalled.py"
    stalled.write_text(
        "import asyncio, pathlib\n"
        "from tests.sample_tools import Echo\n"
        "class Stalled(Echo):\n"
        '    "Never ready."\n'
        "    name = 'Stalled'\n"
        "    async def initialize(self, context):\n"
        f"        pathlib.Path({str(lone_fleet.folder / 'began')!r}).touch()\n"
        "        await asyncio.sleep(600)\n"
        "TOOLS = (Stalled,)\n"
    )
    argv = [sys.executable, "-P", "-m", "workers", "--lane", "async", "--no-builtins", "--tools", "stalled:TOOLS"]
    environment = lone_fleet.environment() | {"PYTHONPATH": f"{ROOT}:{lone_fleet.folder}"}
    process = subprocess.Popen(argv, cwd=lone_fleet.folder, env=environment, stderr=subprocess.PIPE)
    wait_until((lone_fleet.folder / "began").exists, 20, "it never began")

    process.send_signal(number)
    _, said = process.communicate(timeout=60)

    assert (process.returncode, b"Traceback" in said) == (code, False)


def test_a_thread_that_a_module_of_tools_started_keeps_no_worker_from_ending(
    lone_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lone_fleet.folder / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\nfrom tests.sample_tools import Echo\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{lone_fleet.folder}")
    worker = lone_fleet.start("async", tools="threaded:Echo", from_nothing=True)

    assert worker.stop(20) == 0


async def test_a_worker_that_serves_collects_garbage(lone_fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    (lone_fleet.folder / "collecting.py").write_text(
        "import gc\n"
        "from tests.sample_tools import Echo, ToolResult\n"
        "class Collects(Echo):\n"
        '    "Whether it does."\n'
        "    name, parameters = 'Collects', ()\n"
        "    async def _execute(self, context):\n"
        "        return ToolResult.ok(gc.isenabled())\n"
        "TOOLS = (Collects,)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{lone_fleet.folder}")
    lone_fleet.start("async", tools="collecting:TOOLS", from_nothing=True)
    async with ExecutorClient(lone_fleet.settings) as client:
        context = ExecutionContext(working_dir=".")  # it may serve a moment before it does
        await reached(lambda: client.execute("Collects", context), 30, when=lambda result: result.output is True)


async def test_a_broker_that_dies_and_returns_delays_calls_and_loses_none(tmp_path: Path, services: Any) -> None:
    server = ValkeyServer(services.folder(f"mortal-{os.getpid()}"))
    server.start()
    fleet = Fleet(tmp_path, server.url, f"sqlite:///{tmp_path / 'forge.db'}", kill_grace=1.0)
    try:
        fleet.start("async", concurrency=10)
        fleet.start("process")
        context = ExecutionContext(working_dir=str(tmp_path))
        async with ExecutorClient(fleet.settings) as client:
            for act in (lambda: None, server.kill, server.start):
                act()
                async with asyncio.timeout(40):
                    calls = [client.execute(name, context, message="x") for name in ECHO.values() for _ in range(10)]
                    assert all(result.success for result in await asyncio.gather(*calls))
    finally:
        fleet.stop()
        server.stop()


async def test_a_broker_that_hangs_delays_no_result_by_more_than_its_polls(tmp_path: Path, services: Any) -> None:
    server = ValkeyServer(services.folder(f"frozen-{os.getpid()}"))
    server.start()
    fleet = Fleet(tmp_path, server.url, f"sqlite:///{tmp_path / 'forge.db'}", kill_grace=1.0)
    try:
        fleet.start("async", concurrency=10)
        context = ExecutionContext(working_dir=str(tmp_path))
        async with ExecutorClient(fleet.settings) as client:
            assert (await client.execute("Echo", context, message="warm")).success
            os.kill(server.process.pid, signal.SIGSTOP)
            for _ in range(3):
                async with asyncio.timeout(25):
                    assert (await client.execute("Echo", context, message="x")).success
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
        fleet.stop()
        server.stop()


async def test_killed_children_are_replaced_and_leave_no_descriptor_behind(lone_fleet: Fleet) -> None:
    worker = await asyncio.to_thread(lone_fleet.start, "process")
    context = ExecutionContext(working_dir=str(lone_fleet.folder))
    async with ExecutorClient(lone_fleet.settings) as client:
        assert (await client.execute("EchoInProcess", context, message="before")).success
        before = len(descriptors(pid=worker.pid))
        for _ in range(4):
            doomed = children(worker.pid)
            for pid in doomed:
                os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(_replaced, worker, doomed)
        calls = [client.execute("EchoInProcess", context, message=str(n)) for n in range(20)]
        assert all(result.success for result in await asyncio.gather(*calls))

    await asyncio.to_thread(
        wait_until, lambda: len(descriptors(pid=worker.pid)) <= before + 4, 60, "descriptors are left"
    )


def _replaced(worker: WorkerProcess, doomed: list[int]) -> None:
    wait_until(lambda: len(set(children(worker.pid)) - set(doomed)) == 2, 60, "the pool is not whole again")


async def test_a_burst_on_the_process_lane_runs_once_each_and_has_no_long_tail(lone_fleet: Fleet) -> None:
    await asyncio.to_thread(lone_fleet.start, "process")
    context = ExecutionContext(working_dir=str(lone_fleet.folder))
    async with ExecutorClient(lone_fleet.settings) as client:
        calls = [client.execute("EchoInProcess", context, message=str(n)) for n in range(200)]
        results = await asyncio.gather(*calls)

    assert [result.output for result in results] == [str(n) for n in range(200)]
    assert {result.metadata["attempt"] for result in results} == {1}


async def test_many_calls_make_neither_worker_nor_client_grow(lone_fleet: Fleet) -> None:
    worker = await asyncio.to_thread(lone_fleet.start, "async", concurrency=200)
    call = Call("Echo", {"message": "x"}, ExecutionContext(working_dir=str(lone_fleet.folder)))

    async def run(client: ExecutorClient, count: int) -> None:
        handles = await client.calls.submit_many([call] * count)
        for handle in handles:
            assert isinstance(handle, Handle)
            assert (await handle.result(60)).success

    async with ExecutorClient(lone_fleet.settings) as client:
        await run(client, 2000)
        maps = of_worker(worker.pid, "maps")
        await reached(lambda: "sqlalchemy" in maps.read_text(), otherwise="its services load no SQLAlchemy")
        await run(client, 2000)
        before, tasks = resident_megabytes(worker.pid), len(asyncio.all_tasks())
        for _ in range(2):
            await run(client, 2000)
        assert len(asyncio.all_tasks()) <= tasks

    assert resident_megabytes(worker.pid) - before < 8


async def test_calls_that_nobody_awaits_leave_nothing_in_the_client(lone_fleet: Fleet, parts: Parts) -> None:
    await asyncio.to_thread(lone_fleet.start, "async", concurrency=50)
    call = Call("Echo", {"message": "x"}, ExecutionContext(working_dir=str(lone_fleet.folder)))
    async with ExecutorClient(lone_fleet.settings) as client:
        assert (await client.calls.execute(call)).success
        await reached(lambda: parts.brokers[0].is_listening, 40, "it does not listen")

        handles = await client.calls.submit_many([call] * 300)

        ids = [handle.id for handle in handles if isinstance(handle, Handle)]
        await reached(lambda: not any(map(parts.results[0].expects, ids)), 20, "ids are kept for ever")


async def test_a_handle_awaited_after_its_execution_ended_answers_at_once(lone_fleet: Fleet) -> None:
    await asyncio.to_thread(lone_fleet.start, "async")
    call = Call("Echo", {"message": "x"}, ExecutionContext(working_dir=str(lone_fleet.folder)))
    async with ExecutorClient(lone_fleet.settings) as client:
        handles = await client.calls.submit_many([call] * 20)
        async with asyncio.timeout(30):
            results = [await handle.result() for handle in handles if isinstance(handle, Handle)]

    assert len(results) == 20


async def test_a_tool_that_ends_its_process_while_the_worker_is_told_to_stop_is_settled(lone_fleet: Fleet) -> None:
    worker = await asyncio.to_thread(lone_fleet.start, "process")
    context = ExecutionContext(working_dir=str(lone_fleet.folder))
    async with ExecutorClient(lone_fleet.settings) as client:
        mark = lone_fleet.folder / "mark"
        handle = await client.submit("KillItself", {"mark": str(mark)}, context)
        await asyncio.to_thread(wait_until, mark.exists, 20, "it never started")
        assert await asyncio.to_thread(worker.stop) == 0
        result = await handle.result(30)

    assert result.error_code == ErrorCode.LOST
