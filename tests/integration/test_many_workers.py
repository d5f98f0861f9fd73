"""Workers under several host names share bursts of long calls; a call bound to one host runs there or expires."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ExecutionStatus
from tests.fleet import Fleet
from tests.services import Services
from tests.waiting import reached

HOSTS = ("alpha", "beta")
BURSTS = 8
"""Messages carry several calls and go to whoever is free, so that shares are even over bursts, not in each."""
FAIR = (1 / 3, 2 / 3)
"""What goes first and bulk are messages of their own, so that who is quick may get two of a burst's larger ones."""
TRIES = 3
"""A worker that the machine lets stand still for a moment takes nothing meanwhile, as it should."""


@pytest.fixture(scope="module")
def two_hosts(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two hosts with a worker a lane each, over PostgreSQL."""
    postgres = services.postgres()
    url = postgres.create_database()
    fleet = Fleet(tmp_path_factory.mktemp("hosts"), services.valkey().url, url)
    try:
        for host in HOSTS:
            fleet.start("async", concurrency=200, hostname=host)
            fleet.start("process", concurrency=2, hostname=host)
        yield fleet
    finally:
        fleet.stop()
        postgres.drop_database(url)


@pytest.fixture
async def client(two_hosts: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(two_hosts.settings) as client:
        yield client


@pytest.fixture
def context(two_hosts: Fleet) -> ExecutionContext:
    return ExecutionContext(working_dir=str(two_hosts.folder))


async def hosts_of(client: ExecutorClient, calls: list[Call]) -> Counter[str | None]:
    """Run calls at once and count on which host each ran."""
    handles = [handle for handle in await client.calls.submit_many(calls) if isinstance(handle, Handle)]
    assert len(handles) == len(calls)
    results = await asyncio.gather(*(handle.result(60) for handle in handles))
    assert [result.error for result in results if not result.success] == []
    return Counter([(await handle.record()).hostname for handle in handles])


def is_fair(tries: list[float]) -> bool:
    """Whether one host's share of the last try is about half."""
    return bool(tries) and FAIR[0] <= tries[-1] <= FAIR[1]


async def warmed_up(client: ExecutorClient, context: ExecutionContext, tool: str, **parameters: object) -> None:
    """Wait until the workers of both hosts take messages: they are alive a moment before they listen."""
    await reached(lambda: hosts_of(client, [Call(tool, parameters, context)] * 40), when=lambda hosts: len(hosts) >= 2)


@pytest.mark.parametrize("count", [40, 200])
async def test_async_workers_share_bursts_of_long_calls_evenly(
    client: ExecutorClient, context: ExecutionContext, count: int
) -> None:
    await warmed_up(client, context, "Sleep", seconds=0.3)
    calls = [Call("Sleep", {"seconds": 0.3}, context)] * count
    tries: list[float] = []
    for _ in range(TRIES):
        if is_fair(tries):
            break
        shares = sum([await hosts_of(client, calls) for _ in range(BURSTS)], Counter[str | None]())
        tries.append(shares["alpha"] / (BURSTS * count))
    assert is_fair(tries), tries


async def test_a_newcomer_does_not_wait_for_the_backlog_of_another(
    two_hosts: Fleet, client: ExecutorClient, context: ExecutionContext
) -> None:
    await warmed_up(client, context, "Sleep", seconds=0.1)
    call = Call("Sleep", {"seconds": 0.3}, context)
    async with ExecutorClient(two_hosts.settings) as newcomer:
        assert (await newcomer.call("Sleep", {"seconds": 0.0}, context)).success
        backlog = [handle for handle in await client.calls.submit_many([call] * 4_000) if isinstance(handle, Handle)]
        handle = await newcomer.submit("Sleep", {"seconds": 0.0}, context)
        assert (await handle.result(60)).success
        mine = await handle.record()
    await asyncio.gather(*(handle.result(60) for handle in backlog))

    assert mine.completed_at
    starts = [start for handle in backlog[::20] if (start := (await handle.record()).started_at)]
    waiting = [start for start in starts if start > mine.queued_at]
    later = [start for start in waiting if start > mine.completed_at]
    assert len(waiting) >= 40, f"of the 200 looked at only {len(waiting)} still waited when it came"
    assert len(later) >= len(waiting) / 2, f"of {len(waiting)} that waited when it came only {len(later)} ran after it"


async def test_process_workers_share_a_burst_of_long_calls_evenly(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    call = Call("Block", {"seconds": 0.3, "mark": str(tmp_path / "mark")}, context)
    tries: list[float] = []
    for _ in range(TRIES):
        if is_fair(tries):
            break
        tries.append((await hosts_of(client, [call] * 40))["alpha"] / 40)
    assert is_fair(tries), tries


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("tool", ["Echo", "EchoInProcess"])
async def test_a_call_bound_to_a_host_runs_there(
    client: ExecutorClient, context: ExecutionContext, host: str, tool: str
) -> None:
    calls = [Call(tool, {"message": "here"}, context, queue=f"host.{host}")] * 10
    assert await hosts_of(client, calls) == {host: 10}


async def test_a_call_bound_to_a_host_that_is_not_there_expires_and_says_so(
    client: ExecutorClient, context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await client.submit("Echo", {"message": "x"}, context, queue="host.gamma", expires_in=0.5)
    result = await handle.result(timeout=30)
    assert (result.error_code, (await handle.record()).status) == (ErrorCode.EXPIRED, ExecutionStatus.EXPIRED)
    assert "gamma" in (result.error or "")
    await reached(lambda: "on host gamma: forge-tools worker --lane async" in caplog.text)


async def test_a_call_in_a_queue_that_nobody_serves_expires_and_says_how_to_serve_it(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    handle = await client.submit("EchoInProcess", {"message": "x"}, context, queue="gpu", expires_in=0.5)
    result = await handle.result(timeout=30)
    assert result.error_code == ErrorCode.EXPIRED
    assert "queue 'gpu' (lane process)" in (result.error or "")
    assert "forge-tools worker --lane process --queues gpu" in (result.error or "")
