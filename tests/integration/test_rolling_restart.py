"""Workers that are stopped politely hand over their work: a rolling restart under load loses nothing."""

import asyncio
import functools
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.config import Settings
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, Lane
from forge_tools.storage import open_store
from tests.contract.proxy import Proxy
from tests.fleet import Fleet
from tests.waiting import reached, wait_until

SHORT_CALLS = 240
DRAIN = "1"


def short_call(number: int, context: ExecutionContext) -> Call:
    """Every fourth a blocking one in a process, every fourth one in a process that may run twice, the others in the async lane."""
    tool = ("Block", "BlockIdempotent", "Sleep", "Sleep")[number % 4]
    mark = str(Path(context.working_dir) / f"{tool}-{number}")
    return Call(tool, {"seconds": 0.02 * (number % 10), "mark": mark}, context)


@pytest.fixture
def lone_fleet(tmp_path: Path, valkey: Any) -> Iterator[Fleet]:
    """On SQLite alone, where the database does not matter."""
    fleet = Fleet(tmp_path, valkey.url, f"sqlite:///{tmp_path / 'forge.db'}", kill_grace=1.0)
    yield fleet
    fleet.stop()


async def restart(fleet: Fleet, lane: Lane, index: int) -> int:
    code = await asyncio.to_thread(fleet.workers[index].stop)
    await asyncio.to_thread(fleet.start, lane, drain=DRAIN)
    return code


@pytest.fixture
def rolling_fleet(tmp_path: Path, valkey: Any, fresh_postgres: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, valkey.url, fresh_postgres, kill_grace=1.0)
    yield fleet
    fleet.stop()


async def test_a_rolling_restart_under_load_loses_no_call_and_fails_no_idempotent_one(rolling_fleet: Fleet) -> None:
    context = ExecutionContext(working_dir=str(rolling_fleet.folder))
    lanes: list[Lane] = ["async", "async", "process", "process"]
    for lane in lanes:
        await asyncio.to_thread(rolling_fleet.start, lane, drain=DRAIN)
    long_marks = [rolling_fleet.folder / f"long-{n}" for n in range(2)]
    async with ExecutorClient(rolling_fleet.settings) as client:
        long = [
            await client.submit("BlockIdempotent", {"seconds": 4, "mark": str(mark)}, context) for mark in long_marks
        ]
        await asyncio.to_thread(wait_until, lambda: any(mark.exists() for mark in long_marks), 20, "nothing started")
        restarting = asyncio.gather(*(restart(rolling_fleet, "async", 0), restart(rolling_fleet, "process", 2)))
        calls = [short_call(number, context) for number in range(SHORT_CALLS)]
        handles: list[Handle] = []
        for start in range(0, SHORT_CALLS, 40):
            handles += [
                one for one in await client.calls.submit_many(calls[start : start + 40]) if isinstance(one, Handle)
            ]
            await asyncio.sleep(0.1)
        codes = await restarting
        codes += await asyncio.gather(*(restart(rolling_fleet, "async", 1), restart(rolling_fleet, "process", 3)))
        results = await asyncio.gather(*(handle.result(60) for handle in [*handles, *long]))

    assert codes == [0, 0, 0, 0]
    assert len(handles) == SHORT_CALLS
    assert [result.error for result in results if not result.success] == []
    starts = {mark.name: len(mark.read_text().splitlines()) for mark in rolling_fleet.folder.glob("[BS]*-*")}
    assert (len(starts), set(starts.values())) == (SHORT_CALLS, {1})


async def test_a_worker_hands_over_to_its_successor_and_cuts_no_call(lone_fleet: Fleet) -> None:
    lanes: dict[Lane, str] = {"async": "Sleep", "process": "Block"}
    context = ExecutionContext(working_dir=str(lone_fleet.folder))
    async with ExecutorClient(lone_fleet.settings) as client, await open_store(lone_fleet.settings.database) as store:
        old = [await asyncio.to_thread(lone_fleet.start, lane, drain=str(Settings().drain)) for lane in lanes]
        marks = [lone_fleet.folder / tool for tool in lanes.values()]
        long = [await client.submit(mark.name, {"seconds": 15, "mark": str(mark)}, context) for mark in marks]
        marks.append(lone_fleet.folder / "overdue")
        brief = context.model_copy(update={"timeout": 5.0})
        overdue = await client.submit("Block", {"seconds": 60, "mark": str(marks[-1])}, brief)
        await asyncio.to_thread(wait_until, lambda: all(mark.exists() for mark in marks), 20, "not all started")
        for worker in old:
            worker.signal(signal.SIGTERM)
        for lane in lanes:
            await asyncio.to_thread(lone_fleet.start, lane)
        short = [
            await client.submit(name, {"seconds": 0.1, "mark": f"{lone_fleet.folder}/x"}, context)
            for name in lanes.values()
        ]
        assert [(await handle.result(30)).error for handle in short] == [None, None]
        assert [worker.process.poll() for worker in old] == [None, None], "they left before what they ran had ended"
        seen = functools.partial(store.directories.read, 15)
        await reached(seen, 5, "who leaves serves a queue", when=lambda found: set(found.queues.values()) == {1})
        assert [(await handle.result(60)).error for handle in long] == [None, None]
        assert (await overdue.result(60)).error_code == ErrorCode.TIMEOUT, "its own timeout ended it, not the stop"
        assert [await asyncio.to_thread(worker.process.wait, 40) for worker in old] == [0, 0]


@pytest.mark.parametrize(
    ("lane", "tool", "end"), [("async", "Sleep", "lost"), ("process", "BlockIdempotent", "run_again")]
)
async def test_calls_that_are_about_to_be_cut_are_named_while_they_can_still_end(
    lone_fleet: Fleet, lane: Lane, tool: str, end: str
) -> None:
    worker, mark = await asyncio.to_thread(lone_fleet.start, lane, drain="11"), lone_fleet.folder / "mark"
    async with ExecutorClient(lone_fleet.settings) as client:
        context = ExecutionContext(working_dir=str(lone_fleet.folder))
        handle = await client.submit(tool, {"seconds": 60, "mark": str(mark)}, context)
        await asyncio.to_thread(wait_until, mark.exists, 20, "it did not start")
        worker.signal(signal.SIGTERM)
        named = f"{end}=['{handle.id}']"
        await asyncio.to_thread(wait_until, lambda: named in worker.log.read_text(), 30, "nothing was named")
        assert (await handle.record()).status == "running"
        worker.signal(signal.SIGTERM)
        await asyncio.to_thread(worker.process.wait, 40)

    assert [worker.log.read_text().count(f"in_seconds={seconds} ") for seconds in (10, 0)] == [1, 1]


async def test_workers_told_to_stop_while_their_database_is_away_end_in_bounded_time(
    tmp_path: Path, valkey: Any, fresh_postgres: str
) -> None:
    context = ExecutionContext(working_dir=str(tmp_path))
    marks = {tool: tmp_path / tool for tool in ("Sleep", "Block")}
    async with Proxy(fresh_postgres) as proxy:
        fleet = await asyncio.to_thread(Fleet, tmp_path, valkey.url, proxy.url, kill_grace=1.0)
        workers = [await asyncio.to_thread(fleet.start, lane, drain=DRAIN) for lane in ("async", "process")]
        async with ExecutorClient(fleet.settings) as client:
            for tool, mark in marks.items():
                await client.submit(tool, {"seconds": 60, "mark": str(mark)}, context)
            await asyncio.to_thread(wait_until, lambda: all(m.exists() for m in marks.values()), 20, "nothing started")
        proxy.freeze()
        started = time.monotonic()
        for worker in workers:
            worker.signal(signal.SIGTERM)
        codes = [await asyncio.to_thread(worker.process.wait, 60) for worker in workers]

    assert time.monotonic() - started < 30
    assert codes == [0, 0]


async def test_an_immediate_stop_still_records_what_ran(lone_fleet: Fleet) -> None:
    workers = {lane: await asyncio.to_thread(lone_fleet.start, lane, drain="60") for lane in ("async", "process")}
    context = ExecutionContext(working_dir=str(lone_fleet.folder))
    tools = ["Sleep", "Block", "BlockIdempotent"]
    marks = {tool: lone_fleet.folder / tool for tool in tools}
    async with ExecutorClient(lone_fleet.settings) as client:
        handles = {t: await client.submit(t, {"seconds": 60, "mark": str(marks[t])}, context) for t in tools}
        await asyncio.to_thread(wait_until, lambda: all(m.exists() for m in marks.values()), 20, "not all started")
        for worker in workers.values():
            worker.signal(signal.SIGTERM)
            await asyncio.to_thread(
                wait_until, lambda log=worker.log: b"Worker stops" in log.read_bytes(), 40, "unheard"
            )
        started = time.monotonic()
        for worker in workers.values():
            worker.signal(signal.SIGTERM)
        for worker in workers.values():
            await asyncio.to_thread(worker.process.wait, 40)
        seconds = time.monotonic() - started
        lost = [await handles[tool].result(60) for tool in ("Sleep", "Block")]
        again = await handles["BlockIdempotent"].record()

    assert seconds < 30  # about two when the machine is idle, and sixty if it waited for what runs
    assert {result.error_code for result in lost} == {ErrorCode.LOST}
    for result in lost:
        assert "was stopped at 20" in (result.error or "")
        assert "check its effects before you submit it again" in (result.error or "")
    assert (again.status, again.attempt) == ("queued", 1)
