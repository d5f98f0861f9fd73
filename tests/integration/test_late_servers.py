"""Workers that start before their database or broker answers: they wait for what may come, and for nothing else."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext
from tests.contract.proxy import Proxy
from tests.fleet import Fleet
from tests.waiting import reached

WAITS = "The database does not answer; this worker waits for it"


@pytest.fixture
async def database(fresh_postgres: str) -> AsyncIterator[Proxy]:
    async with Proxy(fresh_postgres) as proxy:
        yield proxy


@pytest.fixture
async def fleet(tmp_path: Path, valkey_url: str, database: Proxy) -> AsyncIterator[Fleet]:
    """Without workers, on a database that may be taken away."""
    fleet = await asyncio.to_thread(Fleet, tmp_path, valkey_url, database.url, kill_grace=1.0)
    yield fleet
    await asyncio.to_thread(fleet.stop)


async def go_away(database: Proxy) -> None:
    await database.go_away()


async def come_back(database: Proxy) -> None:
    await database.come_back()


async def freeze(database: Proxy) -> None:
    database.freeze()


async def thaw(database: Proxy) -> None:
    database.thaw()


Act = Callable[[Proxy], Coroutine[Any, Any, None]]


def log(fleet: Fleet) -> str:
    path = fleet.folder / "worker-0.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("lane", ["async", "process"])
@pytest.mark.parametrize(("take", "give"), [(go_away, come_back), (freeze, thaw)], ids=["absent", "frozen"])
async def test_a_worker_waits_for_a_database_that_comes_late_and_says_so_once(
    fleet: Fleet, database: Proxy, lane: str, take: Act, give: Act
) -> None:
    await take(database)
    starting = asyncio.create_task(asyncio.to_thread(fleet.start, lane, connect_timeout="0.5"))
    await reached(lambda: WAITS in log(fleet), otherwise=lambda: log(fleet))
    await give(database)
    await starting

    async with ExecutorClient(fleet.settings) as client:
        tool = "Echo" if lane == "async" else "EchoInProcess"
        result = await client.execute(tool, ExecutionContext(working_dir=str(fleet.folder)), message="at last")
    assert (result.output, log(fleet).count(WAITS)) == ("at last", 1)


async def test_a_worker_without_a_broker_finds_calls_in_sql(fleet: Fleet) -> None:
    await asyncio.to_thread(fleet.start, "async", broker_url="redis://127.0.0.1:1/0")

    async with ExecutorClient(fleet.settings) as client:
        result = await client.execute("Echo", ExecutionContext(working_dir=str(fleet.folder)), message="found")

    assert result.output == "found"
    await reached(lambda: "Cannot connect to redis" in log(fleet), otherwise=lambda: log(fleet))
    assert fleet.workers[0].process.poll() is None


async def test_a_worker_that_waits_for_its_database_stops_when_told(fleet: Fleet, database: Proxy) -> None:
    await database.go_away()
    starting = asyncio.create_task(asyncio.to_thread(fleet.start, "async"))
    await reached(lambda: WAITS in log(fleet), otherwise=lambda: log(fleet))

    fleet.workers[0].signal(signal.SIGTERM)

    with pytest.raises(AssertionError, match=WAITS):
        await starting
    assert fleet.workers[0].process.poll() == 0
    await database.come_back()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda url: f"{url}-absent", "does not exist"),
        (lambda url: url.replace("@", "-wrong@", 1), "password authentication failed"),
    ],
    ids=["name", "password"],
)
async def test_a_worker_does_not_wait_where_somebody_has_to_change_something(
    fleet: Fleet, database: Proxy, wrong: Callable[[str], str], said: str
) -> None:
    with pytest.raises(AssertionError):
        await asyncio.to_thread(fleet.start, "async", database_url=wrong(database.url))

    assert fleet.workers[0].process.poll() == 69
    assert said in log(fleet)
    assert WAITS not in log(fleet)
