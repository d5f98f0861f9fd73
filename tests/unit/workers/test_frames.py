"""Frames cross a socket whole, whatever they hold, and their end is noticed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from workers.lanes.frames import HEADER, read_frame, write_frame

FRAMES: list[dict[str, Any]] = [
    {},
    {"hello": 4711},
    {"ring": [["id", 0]]},
    {"text": "Grüße \x00 \ud800 \U0001f40d", "none": None, "deep": [[[{}]]]},
    {"large": "x" * 5_000_000},
]


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """The reading end and the writing end of one private socket."""
    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accepted.put((reader, writer))

    server = await asyncio.start_unix_server(accept, folder / "socket", limit=2**20)
    _, sending = await asyncio.open_unix_connection(folder / "socket")
    receiving, other = await accepted.get()
    try:
        yield receiving, sending
    finally:
        for writer in (sending, other):
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        server.close()


def fed(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def test_frames_arrive_whole_and_in_order(tmp_path: Path) -> None:
    async with connected(tmp_path) as (receiving, sending), asyncio.timeout(20):
        for frame in FRAMES:
            write_frame(sending, frame)

        assert [await read_frame(receiving) for _ in FRAMES] == FRAMES


async def test_the_end_of_the_other_side_is_no_frame(tmp_path: Path) -> None:
    async with connected(tmp_path) as (receiving, sending), asyncio.timeout(20):
        write_frame(sending, {"last": True})
        sending.close()

        assert await read_frame(receiving) == {"last": True}
        assert await read_frame(receiving) is None


@pytest.mark.parametrize("kept", [0, 2, HEADER.size, HEADER.size + 3])
async def test_a_frame_that_breaks_off_is_the_end(kept: int) -> None:
    body = json.dumps({"id": "x"}).encode()

    assert await read_frame(fed((HEADER.pack(len(body)) + body)[:kept])) is None


async def test_a_connection_that_is_reset_is_the_end() -> None:
    reader = asyncio.StreamReader()
    reader.set_exception(ConnectionResetError())

    assert await read_frame(reader) is None
