"""A client works only where it was connected, and says what to do otherwise."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import pytest

from forge_tools.client.connection import Connection
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError


@pytest.fixture
async def connection(settings: Settings) -> AsyncIterator[Connection]:
    connection = Connection(settings)
    await connection.open()
    yield connection
    await connection.close()


@pytest.mark.parametrize("use", [lambda connection: connection.store, Connection.require_owner])
def test_one_that_is_not_connected_says_so(use: Callable[[Connection], object]) -> None:
    with pytest.raises(ConfigurationError, match="not connected"):
        use(Connection(Settings.load()))


async def test_where_it_was_connected_it_may_be_used(connection: Connection) -> None:
    connection.require_owner()

    assert (await connection.store.directories.read()).enabled


async def test_another_event_loop_is_refused(connection: Connection) -> None:
    async def use() -> None:
        connection.require_owner()

    with pytest.raises(ConfigurationError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, use())


async def test_a_forked_child_is_refused_with_the_process_that_connected_it(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getpid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: parent + 1)

        with pytest.raises(ConfigurationError, match=f"process {parent}; connect a new one after a fork"):
            connection.require_owner()


async def test_a_step_that_fails_is_logged_and_one_that_is_cancelled_is_not(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async def step(error: BaseException) -> None:
        raise error

    for error in (asyncio.CancelledError(), ValueError("a defect")):
        connection.begin(step(error))
    await connection.until_done()
    await asyncio.sleep(0)

    assert [record.error for record in caplog.records] == ["a defect"]


async def test_after_the_close_nothing_begins(connection: Connection) -> None:
    begun = []

    async def step() -> None:
        begun.append(1)

    connection.begin(step())
    await connection.close()
    connection.begin(step())
    await connection.until_done()

    assert begun == [1]
