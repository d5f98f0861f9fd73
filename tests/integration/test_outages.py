"""Broker and database go away, freeze or fill up under load, and everything sleeps: every accepted call ends, once.

`FORGE_TEST_OUTAGE` says how many seconds each outage lasts.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from forge_tools.client import ExecutorClient, Handle
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ExecutionRecord, ExecutionStatus, ToolResult
from tests.contract.proxy import Proxy
from tests.fleet import Fleet
from tests.services import GivenPostgres, PostgresServer, ValkeyServer
from tests.waiting import wait_until

OUTAGE = float(os.environ.get("FORGE_TEST_OUTAGE", "8"))
LEASE = 15.0
REFUSALS = {ErrorCode.STORAGE_UNAVAILABLE, ErrorCode.OUTCOME_UNKNOWN}


@pytest.fixture
def broker(services: Any, request: pytest.FixtureRequest) -> Iterator[ValkeyServer]:
    with ValkeyServer(services.folder(f"outage-{id(request)}")) as server:
        yield server


@pytest.fixture
async def database(fresh_postgres: str) -> AsyncIterator[Proxy]:
    async with Proxy(fresh_postgres) as proxy:
        yield proxy


@pytest.fixture
async def fleet(tmp_path: Path, broker: ValkeyServer, database: Proxy) -> AsyncIterator[Fleet]:
    """A worker a lane on a broker and a database that this test alone may take away."""
    fleet = await asyncio.to_thread(Fleet, tmp_path, broker.url, database.url, kill_grace=1.0)
    try:
        for lane in ("async", "process"):
            await asyncio.to_thread(fleet.start, lane, concurrency=4, consumption_interval="1")
        yield fleet
    finally:
        await asyncio.to_thread(fleet.stop)


@dataclass(frozen=True)
class Servers:
    """What this test may take away."""

    broker: ValkeyServer
    database: Proxy
    postgres: PostgresServer | GivenPostgres


@pytest.fixture
def servers(broker: ValkeyServer, database: Proxy, postgres: PostgresServer | GivenPostgres) -> Servers:
    return Servers(broker, database, postgres)


@asynccontextmanager
async def broker_gone(servers: Servers) -> AsyncIterator[None]:
    servers.broker.kill()
    yield
    servers.broker.start()


@asynccontextmanager
async def broker_frozen(servers: Servers) -> AsyncIterator[None]:
    with suspended([psutil.Process(servers.broker.process.pid)]):
        yield


@asynccontextmanager
async def database_gone(servers: Servers) -> AsyncIterator[None]:
    await servers.database.go_away()
    yield
    await servers.database.come_back()


@asynccontextmanager
async def database_frozen(servers: Servers) -> AsyncIterator[None]:
    """Stop the server's processes; one that is not ours is cut off without a word instead."""
    if isinstance(servers.postgres, PostgresServer):
        postmaster = psutil.Process(servers.postgres.process.pid)
        with suspended([postmaster, *postmaster.children(recursive=True)]):
            yield
    else:
        servers.database.freeze()
        yield
        servers.database.thaw()


@contextmanager
def suspended(processes: list[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


class Callers:
    """Some agents that call one short tool after the other, each body of which leaves a mark of its own."""

    def __init__(self, client: ExecutorClient, folder: Path, timeout: float = 10) -> None:
        self._client = client
        self._context = ExecutionContext(working_dir=str(folder), timeout=timeout)
        self._folder = folder
        self._numbers = count()
        self.results: list[ToolResult] = []
        self.longest = self.longest_refusal = 0.0
        self._is_over = False

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Call until the end of the block, and then until the last of them is answered."""
        self._is_over = False
        callers = [asyncio.create_task(self._call(tool)) for tool in ("Sleep", "Block") * 2]
        try:
            yield
        finally:
            self._is_over = True
            async with asyncio.timeout(60):
                await asyncio.gather(*callers)

    async def submit(self, tool: str, seconds: float) -> Handle:
        """One call whose body outlasts the beginning of what comes."""
        mark = self._mark()
        handle = await self._client.submit(tool, {"seconds": seconds, "mark": str(mark)}, self._context)
        await asyncio.to_thread(wait_until, mark.exists, 20, "the body did not start")
        return handle

    async def _call(self, tool: str) -> None:
        while not self._is_over:  # no deadline: the test is over at the end of a block
            if not (await self.call(tool)).success:
                await asyncio.sleep(0.5)

    async def call(self, tool: str) -> ToolResult:
        began = time.monotonic()
        result = await self._client.execute(tool, self._context, seconds=0.1, mark=str(self._mark()))
        took = time.monotonic() - began
        self.longest = max(self.longest, took)
        self.longest_refusal = max(self.longest_refusal, 0.0 if result.success else took)
        self.results.append(result)
        return result

    def _mark(self) -> Path:
        return self._folder / f"mark-{next(self._numbers)}"

    def starts(self) -> list[int]:
        """How often each body started."""
        return [len(mark.read_text().splitlines()) for mark in self._folder.glob("mark-*")]


async def settled(client: ExecutorClient) -> list[ExecutionRecord]:
    """All executions, once they have ended."""
    live = {ExecutionStatus.QUEUED, ExecutionStatus.RUNNING}
    async with asyncio.timeout(60):
        while True:
            records = await client.history.list(limit=1000)
            if not live & {record.status for record in records}:
                return records
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("outage", "seconds", "patience"),
    [
        (broker_gone, OUTAGE, 15.0),
        (broker_frozen, OUTAGE, 15.0),
        (database_gone, max(OUTAGE, LEASE + 5), 20.0),
        (database_frozen, OUTAGE, 20.0),
    ],
)
async def test_callers_are_answered_every_accepted_call_runs_once_and_nobody_is_condemned(
    fleet: Fleet, servers: Servers, outage: Any, seconds: float, patience: float
) -> None:
    async with ExecutorClient(fleet.settings) as client:
        callers = Callers(client, fleet.folder)
        async with callers.calling():
            running = [await callers.submit(tool, 2.0) for tool in ("Sleep", "Block", "BlockIdempotent")]
            waiting = [await client.submit("Sleep", {"seconds": 0.1}, None) for _ in range(8)]
            async with outage(servers):
                fresh = []
                for _ in range(int(seconds)):
                    fresh.append(asyncio.create_task(callers.call("Sleep")))
                    await asyncio.sleep(1)
            await asyncio.gather(*fresh)
            ended = [await handle.result(timeout=30) for handle in running + waiting]
            await asyncio.sleep(2)
        records = await settled(client)

    failed = [result for result in callers.results if not result.success]
    codes = Counter(result.error_code for result in failed)
    print(f"{outage.__name__}: {len(callers.results)} calls, longest {callers.longest:.1f} s,", end=" ")
    print(f"refused {dict(codes)} within {callers.longest_refusal:.1f} s")
    assert [result.success for result in ended] == [True] * 11
    assert {(record.status, record.attempt) for record in records} == {(ExecutionStatus.SUCCEEDED, 1)}
    assert set(callers.starts()) == {1}
    assert codes.keys() <= (REFUSALS if "database" in outage.__name__ else set())
    assert callers.longest_refusal < 20
    assert callers.longest < patience + (seconds if "database" in outage.__name__ else 0)


async def test_everything_may_sleep_for_longer_than_a_lease(fleet: Fleet, broker: ValkeyServer) -> None:
    """A laptop is closed: workers, their children, the broker, and with this loop the client and the way to the database.

    Stopped processes still grow older, unlike those of a machine that sleeps, so the timeout is longer than the sleep.
    """
    async with ExecutorClient(fleet.settings) as client:
        callers = Callers(client, fleet.folder, timeout=OUTAGE + 60)
        runs = [await callers.submit(tool, 4.0) for tool in ("Sleep", "Block", "BlockIdempotent")]
        waits = [await client.submit("Sleep", {"seconds": 0.1}, None) for _ in range(8)]
        sleepers = [psutil.Process(broker.process.pid)]
        for worker in fleet.workers:
            sleepers += [process := psutil.Process(worker.pid), *process.children(recursive=True)]
        with suspended(sleepers):
            time.sleep(max(OUTAGE, LEASE + 3))
        results = [await handle.result(timeout=40) for handle in runs + waits]
        records = await client.history.list()

    assert [result.success for result in results] == [True] * 11
    assert {record.attempt for record in records} == {1}
    assert callers.starts() == [1, 1, 1]
    assert [worker.process.poll() for worker in fleet.workers] == [None, None]
