"""Tools that block the loop of the async lane or do not end: they are named, and their neighbours finish."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ToolResult
from tests.fleet import Fleet
from tests.waiting import reached, wait_until


@pytest.fixture
def lone_fleet(tmp_path: Path, valkey: Any) -> Iterator[Fleet]:
    """On SQLite alone: what is asked here is not about the database."""
    fleet = Fleet(tmp_path, valkey.url, f"sqlite:///{tmp_path / 'forge.db'}", kill_grace=1.0)
    yield fleet
    fleet.stop()


def call(fleet: Fleet, tool: str, timeout: float | None = None, **parameters: Any) -> Call:
    limit = {} if timeout is None else {"timeout": timeout}
    context = ExecutionContext(working_dir=str(fleet.folder), **limit)
    if tool != "Sleep":
        parameters.setdefault("mark", str(fleet.folder / "mark"))
    return Call(tool, parameters, context)


async def all_of(client: ExecutorClient, *calls: Call) -> list[ToolResult]:
    """Submit them in one go, and wait for all."""
    return await asyncio.gather(*(handle.result(60) for handle in await submitted(client, *calls)))


def marks(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


async def test_a_blocker_is_named_and_moved_to_processes_and_its_neighbours_finish(fresh_fleet: Fleet) -> None:
    await asyncio.to_thread(fresh_fleet.start, "async", concurrency=50)
    await asyncio.to_thread(fresh_fleet.start, "process")
    nap = call(fresh_fleet, "Careless", how="nap", seconds=3)
    neighbours = [call(fresh_fleet, "Sleep", seconds=seconds, timeout=2.5) for seconds in (0.2, 1.0, 2.0)]
    async with ExecutorClient(fresh_fleet.settings) as client, ExecutorClient(fresh_fleet.settings) as ignorant:
        blocker, *others = await all_of(client, nap, *neighbours)
        again = await client.calls.execute(nap)
        without_news = await ignorant.calls.execute(nap)
        record = await client.history.get(again.metadata["execution_id"])

    assert blocker.error_code == ErrorCode.BLOCKED
    assert "Tool Careless blocked the worker's event loop for" in str(blocker.error)
    assert "_execute at careless_tools.py:" in str(blocker.error)
    assert [(other.success, other.error) for other in others] == [(True, None)] * 3
    assert (again.output, record.lane, without_news.output) == ("nap", "process", "nap")


async def test_blocking_python_is_interrupted_long_before_its_own_end(lone_fleet: Fleet) -> None:
    worker = await asyncio.to_thread(lone_fleet.start, "async", concurrency=50)
    began = time.monotonic()
    async with ExecutorClient(lone_fleet.settings) as client:
        spin = call(lone_fleet, "Careless", how="spin", seconds=60)
        spinner, *others = await all_of(client, spin, *[call(lone_fleet, "Sleep", seconds=0.5)] * 5)

    assert time.monotonic() - began < 50
    assert spinner.error_code == ErrorCode.BLOCKED
    assert all(other.success for other in others)
    assert worker.process.poll() is None


async def test_fifty_calls_of_a_blocking_tool_at_once_are_one_incident(lone_fleet: Fleet) -> None:
    worker = await asyncio.to_thread(lone_fleet.start, "async", concurrency=100)
    await asyncio.to_thread(lone_fleet.start, "process")
    async with ExecutorClient(lone_fleet.settings) as client:
        for tool, how in [("Careless", "nap"), ("CarelessIdempotent", "nap later")]:
            one, other = (call(lone_fleet, tool, how=how, seconds=seconds) for seconds in (1.5, 0.05))
            results = await all_of(client, one, *[other] * 49, call(lone_fleet, "Sleep", seconds=0.5))

            codes = [result.error_code for result in results]
            assert (codes.count(ErrorCode.BLOCKED), codes.count(None)) == (1, 50), [one.error for one in results]
    assert worker.log.read_text().count("event loop of the tools is blocked") == 2


async def test_a_block_that_nothing_ends_costs_the_process_and_every_call_is_settled(lone_fleet: Fleet) -> None:
    worker = await asyncio.to_thread(lone_fleet.start, "async", concurrency=50)
    async with ExecutorClient(lone_fleet.settings) as client:
        [sleeping] = await submitted(client, call(lone_fleet, "Sleep", seconds=30))
        await reached(sleeping.status, when=lambda status: status == "running")
        [blocking] = await submitted(client, call(lone_fleet, "Careless", how="nap", seconds=60, timeout=1.5))
        await asyncio.to_thread(wait_until, lambda: marks(lone_fleet.folder / "mark"), 20, "it never started")
        [waiting] = await submitted(client, call(lone_fleet, "Careless", how="well"))
        code = await asyncio.to_thread(worker.process.wait, 50)
        blocker = await blocking.result(60)
        statuses = [await one.status() for one in (sleeping, waiting)]

    assert (code, blocker.error_code) == (75, ErrorCode.BLOCKED)
    assert statuses == ["lost", "queued"]
    assert "Traceback" not in worker.log.read_text()


async def test_what_swallows_cancellation_is_ended_in_time_and_does_not_run_on(lone_fleet: Fleet) -> None:
    await asyncio.to_thread(lone_fleet.start, "async", concurrency=10)
    cases = [(how, by) for how in ("in the body", "in a task") for by in (ErrorCode.TIMEOUT, ErrorCode.CANCELLED)]
    files = [lone_fleet.folder / f"mark-{number}" for number in range(len(cases))]
    calls = [
        call(lone_fleet, "Stubborn", how=how, mark=str(file), timeout=2.0 if by == ErrorCode.TIMEOUT else 60)
        for (how, by), file in zip(cases, files, strict=True)
    ]
    async with ExecutorClient(lone_fleet.settings) as client:
        handles = await submitted(client, *calls)
        await asyncio.to_thread(wait_until, lambda: all(marks(file) > 1 for file in files), 20, "they never started")
        began = time.monotonic()
        for handle, (_, by) in zip(handles, cases, strict=True):
            if by == ErrorCode.CANCELLED:
                await client.calls.cancel(handle.id)
        results = await asyncio.gather(*(handle.result(60) for handle in handles))

    assert [result.error_code for result in results] == [by for _, by in cases]
    assert time.monotonic() - began < 40
    await asyncio.to_thread(wait_until, lambda: not any(map(grows, files)), 20, "they run on")


async def submitted(client: ExecutorClient, *calls: Call) -> list[Handle]:
    return [handle for handle in await client.calls.submit_many(calls) if isinstance(handle, Handle)]


def grows(file: Path) -> bool:
    before = marks(file)
    time.sleep(0.3)  # six of its steps
    return marks(file) > before
