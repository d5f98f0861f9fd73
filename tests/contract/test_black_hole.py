"""A database that swallows everything delays a client for only one deadline; the time of a busy loop does not count."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.embedded.stack import ensure_key
from forge_tools.errors import DatabaseUnavailableError, SubmitOutcomeUnknownError
from forge_tools.model import ExecutionStatus, ToolCategory, ToolSpec
from forge_tools.storage import Store, open_store
from tests.contract.calls import call
from tests.contract.proxy import Proxy

NOWHERE = "redis+socket:///nowhere/valkey.sock"
DEADLINE = 2.0
MUCH_LATER = 10.0
"""Seconds: less than what it took before there was one deadline, and much more than it takes."""


@pytest.fixture
async def proxy(migrated_postgres: str) -> AsyncIterator[Proxy]:
    async with Proxy(migrated_postgres) as standing_between:
        yield standing_between


@pytest.fixture
async def client(proxy: Proxy, migrated_postgres: str, tmp_path: Path) -> AsyncIterator[ExecutorClient]:
    settings = Settings.load(
        home=tmp_path, broker_url=NOWHERE, database_url=proxy.url, connect_timeout=DEADLINE, database_timeout=DEADLINE
    )
    await asyncio.to_thread(ensure_key, settings)
    async with await open_store(migrated_postgres) as store:
        await store.catalogue.publish([ToolSpec(name="Noop", description="x", category=ToolCategory.OTHER)], "instance")
    async with ExecutorClient(settings) as opened:
        yield opened
        proxy.thaw()


async def test_submitting_into_a_black_hole_fails_by_the_deadline(client: ExecutorClient, proxy: Proxy) -> None:
    known = await client.submit("Noop")
    proxy.freeze()
    began = time.monotonic()

    errors: list[DatabaseUnavailableError | SubmitOutcomeUnknownError] = []
    for _ in range(2):
        with pytest.raises((DatabaseUnavailableError, SubmitOutcomeUnknownError)) as raised:
            await client.submit("Noop")
        errors.append(raised.value)

    assert time.monotonic() - began < MUCH_LATER
    proxy.thaw()
    # What was sent depends on whether the connection was free; there is one, so that not both can have been.
    unsent = [error for error in errors if isinstance(error, DatabaseUnavailableError)]
    assert unsent
    assert all("answer within 2 s" in str(error) for error in unsent)
    assert known.id not in [getattr(error, "execution_id", None) for error in errors]
    assert await (await client.submit("Noop")).status() is ExecutionStatus.QUEUED


async def test_asking_a_black_hole_for_a_status_fails_by_the_deadline(client: ExecutorClient, proxy: Proxy) -> None:
    handle = await client.submit("Noop")
    await handle.status()
    proxy.freeze()
    began = time.monotonic()

    for _ in range(3):
        with pytest.raises(DatabaseUnavailableError):
            await handle.status()

    assert time.monotonic() - began < MUCH_LATER
    proxy.thaw()
    assert await handle.status() is ExecutionStatus.QUEUED


async def test_a_client_of_a_black_hole_closes_by_the_deadline(client: ExecutorClient, proxy: Proxy) -> None:
    handle = await client.submit("Noop")
    await handle.status()
    proxy.freeze()
    waiting = [asyncio.create_task(one) for one in (client.submit("Noop"), handle.result(), handle.status())]
    await asyncio.sleep(0)
    began = time.monotonic()

    await client.close()

    assert time.monotonic() - began < MUCH_LATER
    async with asyncio.timeout(MUCH_LATER):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(answer, Exception) for answer in answers)


async def hold_the_loop(seconds: float) -> None:
    """Take it in turns that are much longer than one step of a deadline."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.15)
        await asyncio.sleep(0)


async def test_a_busy_loop_is_not_blamed_on_the_database(migrated_postgres: str) -> None:
    async with await open_store(migrated_postgres, connect_timeout=DEADLINE, deadline=DEADLINE) as store:
        holding = asyncio.create_task(hold_the_loop(4))

        errors = await store.queue.submit_many([call() for _ in range(50)])  # over connections that have to be made
        busy = await asyncio.gather(*(each(store) for _ in range(3)))

        await holding
        assert errors == [None] * 50
        assert busy == [50] * 3


async def each(store: Store) -> int:
    return len(await store.history.list(limit=50))
