"""Workers die, stop and get needless wake-ups; no call is lost that need not be, and none runs twice that must not."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ExecutionStatus
from tests.fleet import Fleet
from tests.integration.conftest import attempts_of
from tests.waiting import is_alive, reached, wait_until


@pytest.fixture
async def client(fresh_fleet: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(fresh_fleet.settings) as client:
        yield client


@pytest.fixture
def context(fresh_fleet: Fleet) -> ExecutionContext:
    return ExecutionContext(working_dir=str(fresh_fleet.folder))


async def test_a_call_submitted_before_any_worker_lives_runs_when_one_comes(
    fresh_fleet: Fleet, context: ExecutionContext
) -> None:
    await asyncio.to_thread(lambda: fresh_fleet.start("async").stop())  # it leaves the catalogue behind
    async with ExecutorClient(fresh_fleet.settings) as client:
        handle = await client.submit("Echo", {"message": "early"}, context)
        await asyncio.to_thread(fresh_fleet.start, "async")
        result = await handle.result(timeout=30)

    assert result.output == "early"


async def test_rows_that_nobody_rang_for_are_found_by_an_idle_worker(
    fresh_fleet: Fleet, context: ExecutionContext, tmp_path: Path
) -> None:
    await asyncio.to_thread(fresh_fleet.start, "async")
    await asyncio.to_thread(fresh_fleet.start, "process")
    silent = fresh_fleet.settings.model_copy(update={"broker_url": f"redis+socket://{tmp_path}/nobody.sock"})

    async with ExecutorClient(silent) as client:
        results = await asyncio.gather(
            client.execute("Echo", context, message="a"), client.execute("EchoInProcess", context, message="b")
        )

    assert [result.output for result in results] == ["a", "b"]


async def test_what_a_killed_worker_ran_is_run_again_if_harmless_and_lost_if_not(
    fresh_fleet: Fleet, client: ExecutorClient, context: ExecutionContext
) -> None:
    marks = {tool: fresh_fleet.folder / tool for tool in ("Block", "BlockIdempotent")}
    doomed = await asyncio.to_thread(fresh_fleet.start, "process")
    handles = [await client.submit(tool, {"seconds": 8, "mark": str(mark)}, context) for tool, mark in marks.items()]
    await asyncio.to_thread(
        wait_until, lambda: all(mark.exists() and mark.read_text() for mark in marks.values()), 20, "no body started"
    )
    children = [int(mark.read_text()) for mark in marks.values()]
    doomed.kill()
    await asyncio.to_thread(fresh_fleet.start, "process")
    lost, again = [await handle.result(timeout=60) for handle in handles]

    assert not any(is_alive(child) for child in children)
    assert (lost.error_code, again.success) == (ErrorCode.LOST, True)
    assert [len(mark.read_text().splitlines()) for mark in marks.values()] == [1, 2]
    assert "worker" in (lost.error or "").lower()


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
async def test_what_a_killed_async_worker_ran_runs_again_at_once_on_the_others(
    fresh_fleet: Fleet, client: ExecutorClient, context: ExecutionContext
) -> None:
    mark = fresh_fleet.folder / "mark"
    doomed = await asyncio.to_thread(fresh_fleet.start, "async", concurrency=200)
    calls = [Call("Doze", {"seconds": 5, "mark": str(mark)}, context) for _ in range(200)]
    handles = [handle for handle in await client.calls.submit_many(calls) if isinstance(handle, Handle)]
    await asyncio.to_thread(
        wait_until, lambda: mark.exists() and len(mark.read_text().splitlines()) == 200, 20, "few started"
    )
    doomed.signal(signal.SIGSTOP)  # so that no body ends until the others serve
    for lane in ("async", "async", "process"):
        await asyncio.to_thread(fresh_fleet.start, lane, concurrency=200 if lane == "async" else 2)
    doomed.kill()
    async with asyncio.timeout(fresh_fleet.settings.lease + 15):
        results = await asyncio.gather(*(handle.result(timeout=60) for handle in handles))

    assert [(result.output, result.metadata["attempt"]) for result in results] == [("awake", 2)] * 200


async def test_a_stopping_worker_lets_short_work_finish(fresh_fleet: Fleet, context: ExecutionContext) -> None:
    worker = await asyncio.to_thread(fresh_fleet.start, "async")
    async with ExecutorClient(fresh_fleet.settings) as client:
        handle = await client.submit("Sleep", {"seconds": 1.5, "mark": str(fresh_fleet.folder / "mark")}, context)
        await asyncio.to_thread(wait_until, (fresh_fleet.folder / "mark").exists, 20, "the body did not start")
        code = await asyncio.to_thread(worker.stop)
        result = await handle.result(timeout=30)

    assert (code, result.output) == (0, "slept 1.5s")


@pytest.mark.parametrize("lane", ["async", "process"])
async def test_a_stopping_worker_ends_within_its_drain_and_says_what_it_left(
    fresh_fleet: Fleet, context: ExecutionContext, lane: str
) -> None:
    worker = await asyncio.to_thread(fresh_fleet.start, lane, drain="0.5")
    tool, mark = ("Sleep" if lane == "async" else "Block"), fresh_fleet.folder / "mark"
    async with ExecutorClient(fresh_fleet.settings) as client:
        handle = await client.submit(tool, {"seconds": 60, "mark": str(mark)}, context)
        await asyncio.to_thread(wait_until, mark.exists, 20, "the body did not start")
        await asyncio.to_thread(worker.stop, 40)
        result = await handle.result(timeout=30)

    assert result.error_code == ErrorCode.LOST
    assert "was stopped" in (result.error or "")


async def test_a_frozen_worker_that_thaws_after_its_lease_writes_nothing(
    fresh_fleet: Fleet, context: ExecutionContext, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    frozen = await asyncio.to_thread(fresh_fleet.start, "async")
    async with ExecutorClient(fresh_fleet.settings) as client:
        handle = await client.submit("Sleep", {"seconds": 10, "mark": str(mark)}, context)
        await asyncio.to_thread(wait_until, mark.exists, 20, "the body did not start")
        await asyncio.to_thread(fresh_fleet.freeze, frozen)
        try:
            await asyncio.to_thread(fresh_fleet.start, "async")
            result = await handle.result(timeout=60)
        finally:
            frozen.signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            while not [event for event in await client.history.events_of(handle.id) if event.kind == "late"]:
                await asyncio.sleep(0.1)
        record = await handle.record()

    assert (result.error_code, record.status) == (ErrorCode.LOST, ExecutionStatus.LOST)


OWNER = """
import os, sys, time
from pathlib import Path
from forge_tools.embedded.supervision import SupervisedProcess
from forge_tools.sandbox.processes.spawner import SPAWNER
log, *command = sys.argv[1:]
worker = SupervisedProcess("worker", command, log=Path(log), environment=os.environ, grace=10, spawner=SPAWNER)
worker.start()
time.sleep(600)
"""


async def test_a_worker_whose_supervisor_dies_is_told_to_stop_before_its_tools_are(
    fresh_fleet: Fleet, context: ExecutionContext
) -> None:
    log = fresh_fleet.folder / "supervised.log"
    worker = [sys.executable, "-P", "-m", "workers", "--lane", "async", "--categories", "execution"]
    owner = subprocess.Popen([sys.executable, "-c", OWNER, log, *worker], env=fresh_fleet.environment())
    try:
        await reached(lambda: log.exists() and "Worker ready" in log.read_text())
        async with ExecutorClient(fresh_fleet.settings) as client:
            handle = await client.submit("Bash", {"command": "touch mark; sleep 2; echo finished"}, context)
            await reached((fresh_fleet.folder / "mark").exists)
            owner.kill()
            result = await handle.result(timeout=30)
            [attempt] = await attempts_of(client, handle.id)
    finally:
        owner.kill()
        owner.wait()

    assert result.output == "finished\n"
    await reached(lambda: not is_alive(attempt.pid))
