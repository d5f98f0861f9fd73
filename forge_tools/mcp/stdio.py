"""The standard streams as a transport: lines of JSON-RPC of bounded length, and nothing else, whatever a tool prints."""

import asyncio
import atexit
import fcntl
import json
import os
import re
import select
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel.server import Server
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCNotification
from mcp.types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError

from forge_tools.errors import ConfigurationError
from forge_tools.signals import ENDINGS, not_ignored
from forge_tools.tool.decorator import in_thread

LAST_WORDS = 1.0
"""Seconds in which a client that has closed its end may read the last messages."""

LOG_SECONDS = 1.0
"""Seconds for a client that reads the error stream to make room there, and for the last lines to reach it."""

_CHUNK = 2**16
_END_BYTES = 1000
"""How much of each end of a line beyond the limit is kept."""

_STRING = rb'"(?:[^"\\]|\\.)*"'
_FLAT = rb"\s*" + _STRING + rb"\s*:\s*(?:" + _STRING + rb"|[\w.+-]+)\s*"
_ID = rb'\s*"id"\s*:\s*(' + _STRING + rb"|-?\d+)\s*"
_FIRST = re.compile(rb"\s*\{(?:" + _FLAT + rb",)*?" + _ID + rb"[,}]", re.DOTALL)
_LAST = re.compile(rb"," + _ID + rb"(?:," + _FLAT + rb")*\}\s*\Z", re.DOTALL)
"""The id of an object before its first nested value, and after the last one."""

_HALF_PAIR = re.compile("[\ud800-\udfff]")


class LongLine(NamedTuple):
    """The remains of a line beyond the limit: its beginning, its id if it is a message, and its length."""

    head: bytes
    id: str | int | None
    size: int


class Lines:
    """Splits a stream into lines without their ends; `limit` is in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes | LongLine]:
        """Add a chunk and return the lines that it completes."""
        *ended, rest = chunk.split(b"\n")
        lines: list[bytes | LongLine] = []
        for part in ended:
            self._keep(part)
            lines.append(self.rest())
        self._keep(rest)
        return lines

    def rest(self) -> bytes | LongLine:
        """Return the bytes after the last line."""
        kept, size = bytes(self._kept), self._size
        self._kept.clear()
        self._size = 0
        return kept if size <= self._limit else LongLine(kept[:_END_BYTES], _id_at_the_ends(kept), size)

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        self._kept += part
        if self._size > self._limit:
            del self._kept[_END_BYTES:-_END_BYTES]


class Stdio:
    """One client at the former standard input and output, under descriptors that nothing else knows.

    From `claim` on, descriptor 1 is the error stream and descriptor 0 is empty, for tools, their child processes and C
    code alike. That is never undone: output at the very end must not reach the client either. If the client does not read
    the error stream, what finds no room there is dropped: nobody waits.
    """

    def __init__(self, read_fd: int, write_fd: int, longest_line: int, flush: Callable[[], None]) -> None:
        """`flush` waits for what is on its way to the error stream."""
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._longest = longest_line
        self._flush = flush

    @classmethod
    def claim(cls, longest_line: int) -> Self:
        """Take the standard streams; call this before importing any user code."""
        # Python knows which streams it was started without; a library may have opened a file under their numbers.
        if sys.__stdin__ is None or sys.__stdout__ is None:
            raise ConfigurationError("Standard input or output is closed; an MCP client must keep them open.")
        # From 3 on: if the error stream is closed, 2 would be the next descriptor.
        read_fd, write_fd = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1))
        sys.stdout.flush()
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nowhere, 0)
        flush = _nothing if sys.__stderr__ is None else _let_overflow(2)
        os.dup2(nowhere if sys.__stderr__ is None else 2, 1)
        os.close(nowhere)
        atexit.register(flush)
        return cls(read_fd, write_fd, longest_line, flush)

    async def serve(self, server: Server[Any]) -> None:
        """Serve until the client closes its end, SIGTERM, SIGHUP or Ctrl-C."""
        task = asyncio.ensure_future(self.exchange(server))
        for number in not_ignored(*ENDINGS):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with suppress(asyncio.CancelledError):
            await task
        await in_thread(self._flush)

    async def exchange(self, server: Server[Any]) -> None:
        """Serve the client until it closes an end; a line that is too long is refused.

        Threads read and write, which works for pipes, terminals and files alike. After a cancel they stay until the
        process ends: input, or a client that reads, may never come.
        """
        incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception]()
        sent, outgoing = anyio.create_memory_object_stream[SessionMessage]()
        async with anyio.create_task_group() as group:
            group.start_soon(self._read, incoming, sent.clone())
            group.start_soon(self._write, outgoing, group.cancel_scope.cancel)
            await server.run(received, sent, server.create_initialization_options())
            group.cancel_scope.deadline = anyio.current_time() + LAST_WORDS

    async def _read(
        self, incoming: MemoryObjectSendStream[SessionMessage | Exception], sent: MemoryObjectSendStream[SessionMessage]
    ) -> None:
        lines = Lines(self._longest)
        chunk = b" "
        async with incoming, sent:
            while chunk:
                chunk = await in_thread(partial(_chunk, self.read_fd))
                for line in lines.feed(chunk) if chunk else [lines.rest()]:
                    message = self._parsed(line)
                    with suppress(anyio.BrokenResourceError):  # the server reads no more
                        if isinstance(message, JSONRPCError):
                            await sent.send(SessionMessage(message))
                        elif message is not None:
                            await incoming.send(message)

    async def _write(
        self, outgoing: MemoryObjectReceiveStream[SessionMessage], client_is_gone: Callable[[], None]
    ) -> None:
        async with outgoing:
            try:
                async for item in outgoing:
                    await in_thread(partial(_write_whole, self.write_fd, encoded(item)))
            except OSError:
                client_is_gone()

    def _parsed(self, line: bytes | LongLine) -> SessionMessage | JSONRPCError | None:
        if isinstance(line, bytes):
            return parsed(line) if line.strip() else None
        said = f"The message is {line.size:,} bytes; the limit is {self._longest:,}. Write the data to a file and pass its path."
        return refusal(INVALID_REQUEST, said, line.id)


def parsed(line: bytes) -> SessionMessage | JSONRPCError:
    """Return the message in a line, or the error to answer with."""
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
    else:
        # The SDK takes a request with an invalid id for a notification.
        has_id = isinstance(message, JSONRPCNotification) and b'"id"' in line and "id" in (_loaded(line) or ())
        wrong = refusal(INVALID_REQUEST, "The id of a request is a string or an integer") if has_id else None
        return wrong or SessionMessage(message)
    found, known = _loaded(line), id_of(line)
    if problem["type"] == "json_invalid":
        return refusal(PARSE_ERROR, problem["msg"], known)
    if isinstance(found, list):
        return refusal(INVALID_REQUEST, "Batches are not part of the protocol; send one message per line")
    return refusal(INVALID_REQUEST, 'A request has `"jsonrpc": "2.0"`, `id`, `method` and, if any, `params`', known)


def id_of(line: bytes) -> str | int | None:
    """Return the id of a message that is invalid otherwise, if that can be read."""
    found = _loaded(line)
    id_ = found.get("id") if isinstance(found, dict) else None
    return id_ if isinstance(id_, str | int) and not isinstance(id_, bool) else None


def refusal(code: int, message: str, id: str | int | None = None) -> JSONRPCError:
    """Return an error of the protocol, without an id if none could be read, or none that JSON can hold."""
    known = None if isinstance(id, str) and _HALF_PAIR.search(id) else id
    return JSONRPCError(jsonrpc="2.0", id=known, error=ErrorData(code=code, message=message))


def encoded(item: SessionMessage) -> bytes:
    return item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


def _loaded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    except (ValueError, RecursionError):  # JSON, but a number in it is too long, or it is too deep
        return {"id": _id_at_the_ends(line)}


def _id_at_the_ends(line: bytes) -> str | int | None:
    found = _FIRST.match(line[:_END_BYTES]) or _LAST.search(line[-_END_BYTES:])
    with suppress(ValueError):
        known: str | int | None = json.loads(found[1]) if found else None
        return known
    return None


def _let_overflow(fd: int) -> Callable[[], None]:
    """Put a pipe of ours before one that its reader may leave full; return what waits until ours is empty."""
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return _nothing
    kept, (source, ours) = os.dup(fd), os.pipe()
    os.dup2(ours, fd)
    os.close(ours)
    threading.Thread(target=_pass_on, args=(source, kept), name="forge-log", daemon=True).start()
    return partial(_await_empty, source)


def _nothing() -> None:
    """Nothing is on its way."""


def _pass_on(source: int, target: int) -> None:
    room, patience = select.poll(), LOG_SECONDS
    room.register(target, select.POLLOUT)  # promises room for PIPE_BUF bytes
    while part := os.read(source, select.PIPE_BUF):
        has_room = room.poll(patience * 1000)
        patience = LOG_SECONDS if has_room else 0.0  # who made no room is awaited again once there is some
        with suppress(OSError):  # nobody reads any more
            if has_room:
                os.write(target, part)


def _await_empty(source: int) -> None:
    deadline = time.monotonic() + LOG_SECONDS
    while select.select([source], [], [], 0)[0] and time.monotonic() < deadline:
        time.sleep(0.005)


def _chunk(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except OSError:  # the terminal is gone
        return b""


def _write_whole(fd: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(fd, rest) :]
