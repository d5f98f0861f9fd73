"""Frames cross a socket whole, whatever they hold, and their end is noticed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from forge_tools.records import ExecutionStatus, Outcome
from workers.lanes import frames
from workers.lanes.frames import HEADER, MOST_BYTES, Line, fields_of

FRAMES: list[dict[str, Any]] = [
    {},
    {"hello": 4711},
    {"ring": [["id", 0]]},
    {"text": "Grüße \x00 \ud800 \U0001f40d", "none": None, "deep": [[[{}]]]},
    {"large": "x" * 5_000_000},
]


class End:
    """One end of a line, with what it heard."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.line = Line(self.heard.put_nowait, lambda: self.heard.put_nowait(None))


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[End, End]]:
    """Both ends of one private socket."""
    loop = asyncio.get_running_loop()
    here, there = End(), End()
    server = await loop.create_unix_server(lambda: there.line, str(folder / "socket"))
    await loop.create_unix_connection(lambda: here.line, str(folder / "socket"))
    here.line.send({"hello": 1})
    assert await there.heard.get() == {"hello": 1}
    try:
        yield here, there
    finally:
        here.line.close()
        there.line.close()
        server.close()
        await asyncio.sleep(0)


def framed(frame: dict[str, Any]) -> bytes:
    body = json.dumps(frame).encode()
    return HEADER.pack(len(body)) + body


async def test_frames_arrive_whole_and_in_order(tmp_path: Path) -> None:
    async with connected(tmp_path) as (here, there), asyncio.timeout(20):
        for frame in FRAMES:
            here.line.send(frame)

        assert [await there.heard.get() for _ in FRAMES] == FRAMES


async def test_the_end_of_the_other_side_is_told_after_its_last_frame(tmp_path: Path) -> None:
    async with connected(tmp_path) as (here, there), asyncio.timeout(20):
        here.line.send({"last": True})
        here.line.close()

        assert [await there.heard.get() for _ in range(2)] == [{"last": True}, None]


async def test_what_is_said_to_nobody_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(tmp_path) as (here, there), asyncio.timeout(20):
        there.line.close()
        assert await here.heard.get() is None
        for _ in range(10):
            here.line.send({"hello": 1})

    Line(lambda _: None, lambda: None).send({"hello": 1})
    assert caplog.text == ""


@pytest.mark.parametrize("pieces", [1, 2, 3, 1000])
def test_frames_are_put_together_from_any_pieces(pieces: int) -> None:
    heard: list[dict[str, Any]] = []
    line = Line(heard.append, lambda: None)
    text = b"".join(framed(frame) for frame in FRAMES[:4])
    size = -(-len(text) // pieces)

    for start in range(0, len(text), size):
        line.data_received(text[start : start + size])

    assert heard == FRAMES[:4]


@pytest.mark.parametrize("kept", [0, 2, HEADER.size, HEADER.size + 3])
def test_a_frame_that_breaks_off_is_never_heard(kept: int) -> None:
    heard: list[dict[str, Any]] = []
    line = Line(heard.append, lambda: heard.append({"end": True}))

    line.data_received(framed({"id": "x"})[:kept])
    line.connection_lost(ConnectionResetError())

    assert heard == [{"end": True}]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (HEADER.pack(MOST_BYTES + 1), "1,073,741,825 bytes were announced"),
        (HEADER.pack(500_000_000) + b"GET / HTTP/1.1", "500,000,000 bytes were announced"),
        (HEADER.pack(9) + b'{"a": 1]}', "9 bytes that came as a frame are no JSON"),
        (HEADER.pack(2) + b"\xff\xfe", "2 bytes that came as a frame are no JSON"),
    ],
)
async def test_what_is_no_frame_ends_the_line_and_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes, said: str
) -> None:
    async with connected(tmp_path) as (here, there), asyncio.timeout(20):
        assert here.line._transport is not None
        here.line._transport.write(framed({"whole": 1}) + sent + framed({"behind": 1}))

        assert [await end.heard.get() for end in (there, there, here)] == [{"whole": 1}, None, None]

    [message] = caplog.messages
    assert said in message


async def test_a_frame_that_is_too_large_is_not_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MOST_BYTES", 1_000)
    async with connected(tmp_path) as (here, there), asyncio.timeout(20):
        here.line.send({"large": "x" * 1_000})

        assert [await end.heard.get() for end in (there, here)] == [None, None]

    assert "a frame of 1,013 bytes was to be sent; the limit is 1,000" in caplog.text


def test_what_arrived_behind_what_is_no_frame_is_never_heard() -> None:
    heard: list[dict[str, Any]] = []
    line = Line(heard.append, lambda: None)

    line.data_received(framed({"whole": 1}) + HEADER.pack(MOST_BYTES + 1) + framed({"behind": 1}))

    assert heard == [{"whole": 1}]


def test_a_record_is_told_by_name_without_what_is_nobodys_business() -> None:
    outcome = Outcome(id="a", attempt=1, token="secret", status=ExecutionStatus.SUCCEEDED, output="1")

    told = fields_of(outcome, "token")

    assert Outcome(**told, token="secret") == outcome
    assert "token" not in told
