"""Frames cross a socket pair whole, whatever they hold, their end is noticed, and a child says only what it may."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.spools import Gathered
from tests.unit.workers.child_bench import CLAIM
from workers.lanes.frames import HEADER, MOST_UNREAD, ChildEnd, EngineEnd, FromChild, fields_of, framed
from workers.outcomes import outcome_of

FRAMES: list[dict[str, Any]] = [
    {"kind": "answering"},
    {"kind": "started", "id": "x", "attempt": 1},
    {
        "kind": "asked",
        "id": "x",
        "attempt": 1,
        "number": 7,
        "artifact": {"text": "Grüße \x00 \U0001f40d", "none": None},
    },
    {"kind": "ended", "id": "x", "attempt": 1, "status": "failed", "error": "x" * 5_000_000},
]
MOST = 10_000_000


class End:
    """The engine's end, with what it heard; None for the end of it."""

    def __init__(self, most_bytes: int = MOST) -> None:
        self.heard: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.line = EngineEnd(self._hear, lambda: self.heard.put_nowait(None), most_bytes)

    def _hear(self, frame: FromChild) -> None:
        told = frame.model_dump(mode="json", exclude={"artifact"}, exclude_unset=True)
        self.heard.put_nowait(told | frame.model_dump(include={"artifact"}))


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[End, ChildEnd, socket.socket]]:
    """The engine's end, and the child's with its socket."""
    end = End()
    ours, theirs = socket.socketpair()
    with theirs:
        await asyncio.get_running_loop().create_connection(lambda: end.line, sock=ours)
        try:
            async with asyncio.timeout(30):
                yield end, ChildEnd(theirs), theirs
        finally:
            end.line.close()
            await asyncio.sleep(0)


async def test_frames_arrive_whole_and_in_order() -> None:
    async with connected() as (end, child, _):
        await asyncio.to_thread(lambda: [child.send(frame) for frame in FRAMES])

        assert [await end.heard.get() for _ in FRAMES] == FRAMES


async def test_frames_of_two_threads_are_not_mixed() -> None:
    large = FRAMES[3]
    async with connected() as (end, child, _):
        await asyncio.gather(*(asyncio.to_thread(child.send, large) for _ in range(4)))

        assert [await end.heard.get() for _ in range(4)] == [large] * 4


async def test_a_child_that_reads_no_answers_is_ended_before_they_fill_the_memory() -> None:
    async with connected() as (end, _, _):
        for number in range(2 * MOST_UNREAD // (1 << 20)):
            end.line.send({"answer": number, "artifact": {"data": bytes(1 << 20)}})

        assert await end.heard.get() is None
        assert end.line.fault == "more requests than it reads answers to"


async def test_what_an_engine_says_arrives_whole() -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()
    frames = [{"run": {"text": "Grüße", "large": "x" * 5_000_000}}, {"answer?": True}]
    async with connected() as (end, child, _):
        child.hear_on(asyncio.get_running_loop(), heard.put_nowait, over := asyncio.Event())
        for frame in frames:
            end.line.send(frame)
        assert [await heard.get() for _ in frames] == frames
        end.line.close()
        await over.wait()


async def test_data_of_an_artifact_goes_to_the_child_as_it_is_and_comes_from_it_in_a_file() -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()
    data = random.Random(1).randbytes(1_000_000)
    async with connected() as (end, child, _):
        child.hear_on(asyncio.get_running_loop(), heard.put_nowait, asyncio.Event())
        for number in range(3):
            with Gathered() as file:
                file.add(bytes([number]))
                asked = {**FRAMES[2], "artifact": {"want": "keep"}, "has_file": True}
                await asyncio.to_thread(child.send, asked, file)
            artifact = (await end.heard.get() or {})["artifact"]
            assert os.pread(artifact["file"].fd, 9, 0) == bytes([number])
            assert not os.get_inheritable(artifact["file"].fd)
            for part in (data, b""):  # of a file that was cut off there is nothing
                end.line.send({"answer": 7, "artifact": {"data": part}})
                assert await heard.get() == {"answer": 7, "artifact": {"data": part}}


async def test_a_lone_surrogate_is_no_reason_not_to_send() -> None:
    async with connected() as (end, child, _):
        child.send({"kind": "ended", "id": "x", "attempt": 1, "status": "failed", "error": "a\ud800b"})

        assert (await end.heard.get() or {})["error"] == "a?b"


async def test_the_end_of_the_other_side_is_told_after_its_last_frame() -> None:
    async with connected() as (end, child, socket_):
        child.send(FRAMES[0])
        socket_.close()

        assert [await end.heard.get() for _ in range(2)] == [FRAMES[0], None]


async def test_what_is_said_to_nobody_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as (end, child, _):
        end.line.close()
        assert await end.heard.get() is None
        for _ in range(10):
            child.send(FRAMES[0])
            end.line.send({"answer?": True})

    assert caplog.text == ""


@pytest.mark.parametrize("pieces", [1, 2, 3, 1000])
def test_frames_are_put_together_from_any_pieces(pieces: int) -> None:
    end = End()
    text = b"".join(framed(frame) for frame in FRAMES)
    size = -(-len(text) // pieces)

    for start in range(0, len(text), size):
        end.line.data_received(text[start : start + size])

    assert [end.heard.get_nowait() for _ in FRAMES] == FRAMES


@pytest.mark.parametrize("kept", [0, 2, HEADER.size, HEADER.size + 3])
def test_a_frame_that_breaks_off_is_never_heard(kept: int) -> None:
    end = End()

    end.line.data_received(framed(FRAMES[0])[:kept])
    end.line.connection_lost(ConnectionResetError())

    assert (end.heard.get_nowait(), end.heard.empty()) == (None, True)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (HEADER.pack(MOST, 1), "a frame of 10,000,001 bytes was announced"),
        (HEADER.pack(5_000_000, 0) + b"GET / HTTP/1.1", "a frame of 5,000,000 bytes was announced"),
        (HEADER.pack(9, 0) + b'{"a": 1]}', "a child may not send it: frame: json_invalid"),
        (framed({"kind": "answering", "pid": 1}), "a child may not send it: answering.pid: extra_forbidden"),
        (framed({"kind": "hello"}), "a child may not send it: frame: union_tag_invalid"),
    ],
)
async def test_what_is_not_a_frame_ends_the_line_and_is_not_waited_for(
    caplog: pytest.LogCaptureFixture, sent: bytes, said: str
) -> None:
    async with connected() as (end, _, socket_):
        socket_.sendall(framed(FRAMES[0]) + sent + framed(FRAMES[1]))

        assert [await end.heard.get() for _ in range(2)] == [FRAMES[0], None]

    [message] = caplog.messages
    assert said in message


def test_what_a_tool_sent_is_not_in_what_is_said_of_it(caplog: pytest.LogCaptureFixture) -> None:
    End().line.data_received(
        framed({"kind": "ended", "id": "x", "attempt": 1, "status": "hunter2", "error": "hunter2"})
    )

    assert "ended.status: literal_error" in caplog.text
    assert "hunter2" not in caplog.text


def test_every_outcome_of_an_honest_child_is_one_that_it_may_send() -> None:
    result = ToolResult.fail("a\x00b", error_code="X" * 500, error_details={"a": ["\ud800"]}, metadata={"deep": [[{}]]})
    outcome = outcome_of(CLAIM, result, 1_000)
    end = End()

    end.line.data_received(framed({"kind": "ended", **fields_of(outcome, "token", "retry_in", "give_back")}))

    told = end.heard.get_nowait() or {}
    assert {name: told[name] for name in fields_of(outcome, "token", "retry_in", "give_back")} == fields_of(
        outcome, "token", "retry_in", "give_back"
    )
