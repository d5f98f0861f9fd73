"""The clock of a PostgreSQL server is set by an hour while real workers run on it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext
from forge_tools.model.overview import WorkerRecord
from forge_tools.storage import open_store
from tests.clocks import SetClock, postgres_clock
from tests.fleet import Fleet
from tests.waiting import reached, wait_until

HOUR = 3590.0
"""Ids more than an hour off the database's clock are refused."""


@pytest.fixture
def fleet(tmp_path: Path, valkey_url: str, fresh_postgres: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, valkey_url, fresh_postgres, kill_grace=1.0)
    yield fleet
    fleet.stop()


@pytest.fixture
def set_clock(fleet: Fleet) -> SetClock:
    return postgres_clock(fleet.settings.database)


@pytest.fixture
async def client(fleet: Fleet, set_clock: SetClock) -> AsyncIterator[ExecutorClient]:
    """Connected after the first worker has said what tools there are; that one leads the recovery."""
    await asyncio.to_thread(fleet.start, "async")
    async with ExecutorClient(fleet.settings) as client:
        yield client


async def naps(client: ExecutorClient, fleet: Fleet, name: str, count: int, seconds: float) -> list[Handle]:
    """Calls that must not be repeated, of which each body leaves a line in the file of that name."""
    parameters = {"seconds": seconds, "mark": str(fleet.folder / name)}
    calls = [Call("Sleep", parameters, ExecutionContext(working_dir=str(fleet.folder))) for _ in range(count)]
    return [handle for handle in await client.calls.submit_many(calls) if isinstance(handle, Handle)]


def starts(fleet: Fleet, name: str) -> int:
    mark = fleet.folder / name
    return len(mark.read_text().splitlines()) if mark.exists() else 0


async def looked_around(fleet: Fleet, workers: int) -> None:
    """Wait until so many workers have looked at the clock, which each does at every beat."""
    await reached(lambda: living(fleet), when=lambda them: [worker.beat > 4 for worker in them] == [True] * workers)


async def living(fleet: Fleet) -> list[WorkerRecord]:
    async with await open_store(fleet.settings.database) as store:
        return [worker for worker in await store.workers.list(seen_within=15) if worker.stopped_at is None]


async def test_a_step_forward_condemns_nobody_and_what_waits_does_not_expire(
    fleet: Fleet, set_clock: SetClock, client: ExecutorClient
) -> None:
    await asyncio.to_thread(fleet.start, "async")
    await looked_around(fleet, 2)
    handles = await naps(client, fleet, "mark", 8, seconds=4)
    await asyncio.to_thread(wait_until, lambda: starts(fleet, "mark") >= 4, 20, "the bodies did not start")

    set_clock(HOUR)
    results = await asyncio.gather(*(handle.result(timeout=40) for handle in handles))

    assert [result.output for result in results] == ["slept 4s"] * 8
    assert starts(fleet, "mark") == 8
    assert len(await living(fleet)) == 2


async def test_a_step_back_condemns_the_dead_alone_and_what_waits_does_not_wait_an_hour(
    fleet: Fleet, set_clock: SetClock, client: ExecutorClient
) -> None:
    lost = await naps(client, fleet, "lost", 2, seconds=60)
    await asyncio.to_thread(wait_until, lambda: starts(fleet, "lost") == 2, 20, "the bodies did not start")
    await asyncio.to_thread(fleet.start, "async")
    await looked_around(fleet, 2)
    handles = await naps(client, fleet, "mark", 6, seconds=4)
    await asyncio.to_thread(wait_until, lambda: starts(fleet, "mark") >= 2, 20, "the bodies did not start")

    fleet.workers[0].kill()
    set_clock(-HOUR)
    results = await asyncio.gather(*(handle.result(timeout=50) for handle in handles))
    ends = await asyncio.gather(*(handle.result(timeout=50) for handle in lost))

    assert [result.output for result in results] == ["slept 4s"] * 6
    assert [result.error_code for result in ends] == [ErrorCode.LOST] * 2
    assert (starts(fleet, "mark"), starts(fleet, "lost")) == (6, 2)
    assert len(await living(fleet)) == 1
