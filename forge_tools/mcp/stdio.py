"""The standard streams as a wire: lines of JSON-RPC and nothing else, whatever a tool prints."""

import asyncio
import fcntl
import json
import os
import queue
import sys
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.lowlevel.server import Server
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCNotification
from mcp.types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError

from forge_tools.errors import ConfigurationError
from forge_tools.mcp.lines import Lines, LongLine, id_of

Incoming = MemoryObjectSendStream[SessionMessage | Exception]

_CHUNK = 2**16


class Wire:
    """What were standard input and output, under numbers that nothing else knows.

    From `claim` on, descriptor 1 is the error stream and descriptor 0 is empty, for tools, their child processes and C code
    alike. That is never undone: what is printed at the very end must not reach the client either.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd

    @classmethod
    def claim(cls) -> Self:
        """Take the standard streams; before anything of a user's own is imported.

        Raises:
            ConfigurationError: there are none.
        """
        try:
            wire = cls(*(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1)))
        except OSError as error:
            raise ConfigurationError(
                "Standard input or output is closed; an MCP client has to hold them open."
            ) from error
        sys.stdout.flush()
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nowhere, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # started without an error stream
            os.dup2(nowhere, 1)
        os.close(nowhere)
        return wire


async def serve_stdio(server: Server[Any], wire: Wire, longest_line: int) -> None:
    """Serve the client at the other end until it closes its end; a line of more than `longest_line` bytes is refused."""
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception]()
    writer = LineWriter(wire.write_fd)
    _Reader(wire.read_fd, send, writer, longest_line).start()
    await server.run(receive, writer, server.create_initialization_options())


def parsed(line: bytes) -> SessionMessage | JSONRPCError:
    """The message in a line; or, where it is none, the error to answer with."""
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        return _answer_to(line, error.errors(include_url=False, include_input=False)[0])
    if isinstance(message, JSONRPCNotification) and b'"id"' in line and "id" in json.loads(line):
        return refusal(INVALID_REQUEST, "The id of a request is a text or an integer")  # the SDK overlooks it
    return SessionMessage(message)


def _answer_to(line: bytes, problem: Mapping[str, Any]) -> JSONRPCError:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    known = id_of(found)
    if problem["type"] == "json_invalid":
        return refusal(PARSE_ERROR, problem["msg"], known)
    if isinstance(found, list):
        return refusal(INVALID_REQUEST, "Batches are not part of the protocol; send one message a line")
    return refusal(INVALID_REQUEST, 'A request has `"jsonrpc": "2.0"`, `id`, `method` and, if any, `params`', known)


def refusal(code: int, message: str, id: str | int | None = None) -> JSONRPCError:
    """An error of the protocol; without an id where none could be read."""
    return JSONRPCError(jsonrpc="2.0", id=id, error=ErrorData(code=code, message=message))


class LineWriter:
    """Writes one message a line, on a thread of its own: a client that does not read blocks nothing else."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: queue.SimpleQueue[tuple[bytes, asyncio.Future[bool]] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._write_all, name="mcp-writer", daemon=True).start()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message; returns when the system has taken it.

        Raises:
            anyio.ClosedResourceError: after `aclose`.
            anyio.BrokenResourceError: the client no longer reads.
        """
        if self._is_closed:
            raise anyio.ClosedResourceError
        written: asyncio.Future[bool] = self._loop.create_future()
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        self._lines.put((text.encode() + b"\n", written))
        if not await written:
            raise anyio.BrokenResourceError

    async def aclose(self) -> None:
        self._is_closed = True
        self._lines.put(None)

    def _write_all(self) -> None:
        while (taken := self._lines.get()) is not None:
            line, written = taken
            is_written = self._write(line)
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(_settle, written, is_written)

    def _write(self, line: bytes) -> bool:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            return False
        return True


def _settle(written: "asyncio.Future[bool]", is_written: bool) -> None:
    if not written.done():
        written.set_result(is_written)


class _Reader(threading.Thread):
    """Reads lines on a thread, which works for pipes, terminals and files alike, and hands them to the loop."""

    def __init__(self, fd: int, incoming: Incoming, writer: LineWriter, longest_line: int) -> None:
        super().__init__(name="mcp-reader", daemon=True)  # it may wait for input for ever
        self._fd = fd
        self._incoming = incoming
        self._writer = writer
        self._longest = longest_line
        self._loop = asyncio.get_running_loop()

    def run(self) -> None:
        with suppress(RuntimeError, CancelledError):  # the loop has ended
            try:
                self._read()
            finally:
                self._on_loop(self._incoming.aclose())

    def _read(self) -> None:
        lines = Lines(self._longest)
        while chunk := self._next_chunk():
            for line in lines.feed(chunk):
                self._on_loop(self._take(line))
        self._on_loop(self._take(lines.rest()))

    def _next_chunk(self) -> bytes:
        try:
            return os.read(self._fd, _CHUNK)
        except OSError:  # a terminal that is gone
            return b""

    def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it on the loop, and wait until it is done: a client that sends faster than we take has to wait."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _take(self, line: bytes | LongLine) -> None:
        if isinstance(line, bytes) and not line.strip():
            return
        message = parsed(line) if isinstance(line, bytes) else _too_long(line, self._longest)
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # nobody is served any more
            if isinstance(message, JSONRPCError):
                await self._writer.send(SessionMessage(message))
            else:
                await self._incoming.send(message)


def _too_long(line: LongLine, limit: int) -> JSONRPCError:
    said = f"The message is {line.size:,} bytes; the limit is {limit:,}. Write the data to a file and pass its path."
    return refusal(INVALID_REQUEST, said, line.id)
