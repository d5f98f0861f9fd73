"""A worker or a child that cannot run calls takes none, and is replaced."""

import asyncio
import os
import resource
from functools import partial

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext
from forge_tools.model.overview import WorkerRecord
from forge_tools.storage import open_store
from tests.descriptors import of_worker
from tests.fleet import Fleet
from tests.services import client as valkey
from tests.waiting import reached

TOOLS = "tests.starving_tools:TOOLS"


@pytest.fixture
def context(fresh_fleet: Fleet) -> ExecutionContext:
    return ExecutionContext(working_dir=str(fresh_fleet.folder))


async def test_a_worker_out_of_descriptors_fails_no_call_says_why_and_ends_for_another(
    fresh_fleet: Fleet, context: ExecutionContext
) -> None:
    sick, _ = [await asyncio.to_thread(fresh_fleet.start, "async", concurrency=50, tools=TOOLS) for _ in range(2)]
    async with ExecutorClient(fresh_fleet.settings) as client:
        await client.execute("Open", context)
        starve(sick.pid)
        results = await asyncio.gather(*(client.execute("Open", context) for _ in range(200)))
        code = await asyncio.to_thread(sick.process.wait, 60)
        later = await asyncio.gather(*(client.execute("Open", context) for _ in range(20)))

    assert [result.error for result in [*results, *later] if not result.success] == []
    assert code == os.EX_TEMPFAIL, sick.log.read_text()
    assert "limit NOFILE is" in ((await record(fresh_fleet, sick.pid)).unfit or "")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_worker_out_of_descriptors_that_loses_the_broker_lets_end_what_it_runs(
    fresh_fleet: Fleet, context: ExecutionContext
) -> None:
    sick = await asyncio.to_thread(fresh_fleet.start, "async", concurrency=50, tools=TOOLS)
    async with ExecutorClient(fresh_fleet.settings) as client:
        eating = await client.submit("Eat", {"seconds": 4}, context)
        await reached(partial(is_starved, sick.pid), otherwise="it has descriptors")
        with valkey(fresh_fleet.settings.broker) as server:
            server.client_kill_filter(_type="normal", skipme=True)
        eaten = await eating.result(60)
        later = await client.execute("Open", context)

    assert (eaten.error, later.error) == (None, None), sick.log.read_text()
    assert sick.process.poll() is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "how",
    ["lower", "lower both", "raise", "ignore", "block", "leak", "close", "close stdin", "redirect"],
)
async def test_a_child_that_a_body_changed_runs_nothing_more(
    fresh_fleet: Fleet, context: ExecutionContext, how: str
) -> None:
    worker = await asyncio.to_thread(fresh_fleet.start, "process", concurrency=1, tools=TOOLS)
    async with ExecutorClient(fresh_fleet.settings) as client:
        well = [await client.execute("Poison", context, how="not at all") for _ in range(2)]
        poisoned = await client.execute("Poison", context, how=how)
        after = [await client.execute("Poison", context, how="not at all") for _ in range(2)]

    pids = [result.output for result in [*well, poisoned, *after]]
    assert pids == [pids[0]] * 3 + [pids[3]] * 2, worker.log.read_text()
    assert pids[0] != pids[3]
    assert "worker is unfit" not in worker.log.read_text()


def starve(pid: int) -> None:
    """Leave a process no descriptor beyond those that it has."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    lowest = min(set(range(10_000)) - {int(entry.name) for entry in of_worker(pid, "fd").iterdir()})
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, hard))


def is_starved(pid: int) -> bool:
    return len(os.listdir(of_worker(pid, "fd"))) >= resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]


async def record(fleet: Fleet, pid: int) -> WorkerRecord:
    async with await open_store(fleet.settings.database) as store:
        return next(worker for worker in await store.workers.list() if worker.pid == pid)
