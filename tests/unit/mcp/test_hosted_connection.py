"""A connection whose supervision ends, as when a worker stops."""

import asyncio

import pytest

from forge_tools.mcp.hosted.configuration import Server, ServerWalls
from forge_tools.mcp.hosted.connection import Connection
from forge_tools.mcp.thread import StoppedError
from tests.hosting import raw


async def ignored(progress: float, total: float | None, message: str | None) -> None:
    """Take no notice of progress."""


def connection(server: Server) -> Connection:
    return Connection(server, lambda: None, max_message_bytes=10_000, walls=ServerWalls())


async def test_calls_after_it_are_refused() -> None:
    one = connection(raw("plain"))
    supervising = asyncio.create_task(one.supervise(asyncio.Semaphore()))
    await one.was_tried.wait()

    supervising.cancel()
    await asyncio.wait([supervising])

    with pytest.raises(StoppedError):
        await one.call("echo", {"text": "late"}, ignored)


async def test_a_call_that_waits_for_a_session_is_refused_with_its_end() -> None:
    one = connection(raw("plain"))
    starts = asyncio.Semaphore(0)
    supervising = asyncio.create_task(one.supervise(starts))
    waiting = asyncio.create_task(one.call("echo", {"text": "early"}, ignored))
    await asyncio.sleep(0)

    supervising.cancel()

    with pytest.raises(StoppedError):
        await asyncio.wait_for(waiting, 10)
