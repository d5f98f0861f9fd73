"""The standard streams as transport: lines in, lines out, and an answer to anything that is not a message."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError

from forge_tools.mcp.server import ToolServer
from forge_tools.mcp.stdio import Lines, LongLine, Stdio, parsed
from tests.unit.mcp.conftest import Local
from tests.waiting import reached, within

LONGEST = 100_000
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
PING = {"jsonrpc": "2.0", "id": 9, "method": "ping"}


class Peer:
    """A client that writes bytes and reads lines."""

    def __init__(self, to_server: int, lines: asyncio.StreamReader, stop_reading: Callable[[], None]) -> None:
        self._out = to_server
        self._lines = lines
        self.stop_reading = stop_reading

    async def send(self, data: bytes | dict[str, Any]) -> None:
        raw = data if isinstance(data, bytes) else json.dumps(data).encode() + b"\n"
        await asyncio.wait_for(asyncio.to_thread(self._write, raw), 10)

    def _write(self, raw: bytes) -> None:
        time_left = within(60, "nobody reads")
        while raw and next(time_left):
            raw = raw[os.write(self._out, raw) :]

    async def line(self) -> Any:
        return json.loads(await asyncio.wait_for(self._lines.readline(), 10))

    def hang_up(self) -> None:
        if self._out >= 0:
            os.close(self._out)
            self._out = -1


@asynccontextmanager
async def wired(local: Local) -> AsyncIterator[Peer]:
    """A server on pipes; it ends when its client hangs up."""
    (there_in, here_out), (here_in, there_out) = os.pipe(), os.pipe()
    serving = asyncio.ensure_future(Stdio(there_in, there_out, LONGEST, flush=lambda: None).exchange(ToolServer(local)))
    lines = asyncio.StreamReader(limit=2**24)
    pipe = os.fdopen(here_in, "rb")
    reading, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), pipe)
    peer = Peer(here_out, lines, reading.pause_reading)
    try:
        yield peer
    finally:
        peer.hang_up()
        await asyncio.wait_for(serving, 30)
        reading.close()
        await reached(lambda: not any(thread.name == "forge-function" for thread in threading.enumerate()))
        os.close(there_in)
        os.close(there_out)


@asynccontextmanager
async def served(local: Local) -> AsyncIterator[Peer]:
    """A server that was greeted."""
    async with wired(local) as peer:
        await peer.send(HELLO)
        assert (await peer.line())["result"]["serverInfo"]["name"] == "forge-tools"
        await peer.send(READY)
        yield peer


MALFORMED: list[tuple[bytes, int, Any]] = [
    (b"hello", -32700, None),
    (b"{", -32700, None),
    (b"\xff\xfe{}", -32700, None),
    (b"[" * 50_000, -32700, None),
    (b'{"jsonrpc":"2.0","id":4,"method":"ping","params":{"deep":' + b"[" * 5_000 + b"]" * 5_000 + b"}}", -32700, 4),
    (b'{"method":"ping","params":{"long":' + b"9" * 5_000 + b'},"jsonrpc":"2.0","id":"c"}', -32700, "c"),
    (b'{"jsonrpc":"2.0","id":4,"method":"ping","params":{"half":"\\ud800"}}', -32700, 4),
    (b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', -32700, None),
    (b"[]", -32600, None),
    (json.dumps([PING, PING]).encode(), -32600, None),
    (b"7", -32600, None),
    (b"null", -32600, None),
    (b"{}", -32600, None),
    (b'{"jsonrpc":"2.0","id":5,"method":7}', -32600, 5),
    (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":[]}', -32600, "a"),
    (b'{"jsonrpc":"1.0","id":6,"method":"ping"}', -32600, 6),
    (b'{"id":6,"method":"ping"}', -32600, 6),
    (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":8,"method":"no/such"}', -32601, 8),
    (b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{}}', -32602, 8),
    (b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":7}}', -32602, 8),
    (b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"Say","arguments":[]}}', -32602, 8),
    (b'{"jsonrpc":"2.0","id":8,"method":"tools/list","params":{"cursor":"?"}}', -32602, 8),
    (b'{"jsonrpc":"2.0","id":8,"method":"tasks/get","params":{"taskId":"x"}}', -32601, 8),
    (b'{"jsonrpc":"2.0","id":8,"method":"initialize","params":{}}', -32602, 8),
    (b"x" * (LONGEST + 1), -32600, None),
    (b"x" * (50 * LONGEST), -32600, None),
    (b'{"params":{"id":3,"x":"' + b"x" * LONGEST + b'"},"method":"ping","jsonrpc":"2.0","id":11}', -32600, 11),
    (b'{"jsonrpc":"2.0","id":"\\udfff","method":"' + b"x" * LONGEST + b'"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":"b","method":"ping","params":{"x":"' + b'\\"' * LONGEST + b'"}}', -32600, "b"),
]


@pytest.mark.parametrize(("line", "code", "id_"), MALFORMED, ids=[str(one[0][:60]) for one in MALFORMED])
async def test_what_is_not_a_message_is_answered_and_the_next_one_served(
    local: Local, line: bytes, code: int, id_: Any
) -> None:
    async with served(local) as peer:
        await peer.send(line + b"\n")
        answer = await peer.line()
        assert (answer["error"]["code"], answer["id"]) == (code, id_), answer
        await peer.send(PING)
        assert await peer.line() == {"jsonrpc": "2.0", "id": 9, "result": {}}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   \r",
        b'{"jsonrpc":"2.0","method":"no/such/notification"}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":404}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}',
        b'{"jsonrpc":"2.0","id":404,"result":{}}',
        b'{"jsonrpc":"2.0","id":404,"error":{"code":1,"message":"no"}}',
    ],
)
async def test_what_needs_no_answer_gets_none(local: Local, line: bytes) -> None:
    async with served(local) as peer:
        await peer.send(line + b"\n")
        await peer.send(PING)
        assert (await peer.line())["id"] == 9


async def test_a_message_may_come_in_pieces_and_many_at_once(local: Local) -> None:
    async with served(local) as peer:
        raw = json.dumps(PING).encode()
        for piece in (raw[:7], raw[7:20], raw[20:] + b"\n" + raw + b"\r\n" + raw + b"\n"):
            await peer.send(piece)
        assert [(await peer.line())["id"] for _ in range(3)] == [9, 9, 9]


async def test_a_request_before_the_greeting_is_refused(local: Local) -> None:
    async with wired(local) as peer:
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "Say"}})
        assert (await peer.line())["error"]["code"] == -32602


async def test_the_last_line_needs_no_end(local: Local) -> None:
    async with served(local) as peer:
        await peer.send(b'{"jsonrpc":"2.0","id":8,"met')
        peer.hang_up()
        assert (await peer.line())["error"]["code"] == -32700


async def test_a_client_that_reads_nothing_does_not_keep_the_server_from_ending(local: Local) -> None:
    async with wired(local) as peer:
        peer.stop_reading()
        await peer.send(HELLO)
        big = {"name": "Say", "arguments": {"message": "x" * 90_000}}
        for number in range(2, 12):
            await peer.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": big})


def test_messages_are_told_from_errors() -> None:
    assert isinstance(parsed(b'{"jsonrpc":"2.0","id":1,"method":"ping"}'), SessionMessage)
    assert isinstance(parsed(b'{"jsonrpc":"2.0","id":1}'), JSONRPCError)


def test_a_claimed_stream_is_out_of_reach() -> None:
    program = """
import os, subprocess, sys
from forge_tools.mcp.stdio import Stdio
print("before", flush=True)
wire = Stdio.claim(1000)
print("printed")
sys.stdout.flush()
os.write(1, b"written\\n")
subprocess.run(["echo", "from a child"])
assert os.read(0, 10) == b"", "standard input is empty"
assert min(wire.read_fd, wire.write_fd) > 2
os.write(wire.write_fd, b"the wire: " + os.read(wire.read_fd, 10))
os.write(1, b"at the end\\n")
"""
    done = subprocess.run([sys.executable, "-c", program], input=b"hello", capture_output=True, timeout=30)

    assert done.stdout == b"before\nthe wire: hello", done.stderr
    assert done.stderr.splitlines() == [b"printed", b"written", b"from a child", b"at the end"]


def test_a_stream_is_claimed_where_there_is_no_error_stream() -> None:
    program = "import os; from forge_tools.mcp.stdio import Stdio; w = Stdio.claim(1000); os.write(1, b'x'); os.write(w.write_fd, b'wire')"
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, program], capture_output=True, timeout=30
    )

    assert done.stdout == b"wire"


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_without_standard_streams_it_says_so(closed: str) -> None:
    program = "from forge_tools.mcp.stdio import Stdio; Stdio.claim(1000)"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, program], capture_output=True, timeout=30
    )

    assert b"ConfigurationError: Standard input or output is closed" in done.stderr


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(1, 7))
def test_lines_are_the_same_however_they_arrive(written: list[bytes], size: int) -> None:
    written = [line.replace(b"\n", b"") for line in written]
    text = b"".join(line + b"\n" for line in written)
    lines = Lines(1000)

    found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]

    assert found == written


def test_of_a_long_line_the_beginning_is_kept_and_the_rest_is_counted() -> None:
    lines = Lines(10_000)
    for _ in range(100):
        assert lines.feed(b"a" * 10_000) == []

    assert lines.feed(b"the end\nnext\n") == [LongLine(b"a" * 1000, None, 1_000_007), b"next"]


def test_a_line_at_the_limit_is_whole() -> None:
    assert Lines(5_000).feed(b"a" * 5_000 + b"\n") == [b"a" * 5_000]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.sampled_from('a"\\{}[]:,\nid'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "a", '"id":']), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([7, "seven", 'a"\\b', "", None, True, 1.5]), st.booleans(), st.integers(1, 9))
def test_the_id_of_a_long_message_is_that_of_its_outermost_object(
    params: Any, id_: Any, is_first: bool, size: int
) -> None:
    message = {"id": id_, "params": params} if is_first else {"params": params, "method": "x", "id": id_}
    text = json.dumps(message).encode() + b"\n"
    lines = Lines(3)

    found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]

    known = id_ if isinstance(id_, str | int) and id_ is not True else None
    assert [(line.id, line.size) for line in found if isinstance(line, LongLine)] == [(known, len(text) - 1)]


@pytest.mark.parametrize("text", [b'[{"id": 1}]', b'{"params": {"id": 1}}', b'{"id": 1', b'"id": 1', b"[" * 99])
def test_what_is_not_a_message_has_no_id(text: bytes) -> None:
    assert Lines(3).feed(text + b"\n") == [LongLine(text, None, len(text))]


async def test_a_client_that_has_closed_its_other_end_is_served_no_longer(local: Local) -> None:
    """Its input may stay open for ever: any process that the client started may have inherited it."""
    (there_in, here_out), (here_in, there_out) = os.pipe(), os.pipe()
    serving = asyncio.ensure_future(Stdio(there_in, there_out, LONGEST, flush=lambda: None).exchange(ToolServer(local)))
    os.close(here_in)
    os.write(here_out, json.dumps(HELLO).encode() + b"\n")
    try:
        await asyncio.wait_for(serving, 30)
    finally:
        os.close(here_out)
        await reached(lambda: not any(thread.name == "forge-function" for thread in threading.enumerate()))
        os.close(there_in)
        os.close(there_out)
