"""The standard streams as a transport: only lines of JSON-RPC, whatever a tool prints."""

import asyncio
import fcntl
import json
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from typing import Any, Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel.server import Server
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, JSONRPCError, JSONRPCNotification
from mcp.types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError

from forge_tools.errors import ConfigurationError
from forge_tools.mcp.lines import Lines, LongLine, encoded, id_of, misnumbered, refusal
from forge_tools.signals import not_ignored
from forge_tools.tool.decorator import in_thread

LAST_WORDS = 1.0
"""Seconds in which a client that has closed its end may read the last messages."""

_CHUNK = 2**16


class Stdio:
    """One client at the former standard input and output, under descriptors that nothing else knows.

    From `claim` on, descriptor 1 is the error stream and descriptor 0 is empty, for tools, their child processes and C
    code alike. That is never undone: output at the very end must not reach the client either.
    """

    def __init__(self, read_fd: int, write_fd: int, longest_line: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._longest = longest_line

    @classmethod
    def claim(cls, longest_line: int) -> Self:
        """Take the standard streams; call this before importing any user code.

        Raises:
            ConfigurationError: there are none.
        """
        try:
            read_fd, write_fd = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1))
        except OSError as error:
            raise ConfigurationError(
                "Standard input or output is closed; an MCP client must keep them open."
            ) from error
        sys.stdout.flush()
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nowhere, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # started without an error stream
            os.dup2(nowhere, 1)
        os.close(nowhere)
        return cls(read_fd, write_fd, longest_line)

    async def serve(self, server: Server[Any]) -> None:
        """Serve until the client closes its end, SIGTERM or Ctrl-C."""
        task = asyncio.ensure_future(self.exchange(server))
        for number in not_ignored(signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with suppress(asyncio.CancelledError):
            await task

    async def exchange(self, server: Server[Any]) -> None:
        """Serve the client until it closes its end; a line that is too long is refused.

        Threads read and write, which works for pipes, terminals and files alike. After a cancel they stay until the
        process ends: input, or a client that reads, may never come.
        """
        incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception]()
        sent, outgoing = anyio.create_memory_object_stream[SessionMessage]()
        async with anyio.create_task_group() as group:
            group.start_soon(self._read, incoming, sent.clone())
            group.start_soon(self._write, outgoing)
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
                    with suppress(anyio.BrokenResourceError):  # there are no clients any more
                        if isinstance(message, JSONRPCError):
                            await sent.send(SessionMessage(message))
                        elif message is not None:
                            await incoming.send(message)

    async def _write(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        with suppress(OSError):  # the client no longer reads
            async with outgoing:
                async for item in outgoing:
                    await in_thread(partial(_write_whole, self.write_fd, encoded(item)))

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
        wrong = misnumbered(line) if isinstance(message, JSONRPCNotification) else None
        return wrong or SessionMessage(message)
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    known = id_of(found)
    if problem["type"] == "json_invalid":
        return refusal(PARSE_ERROR, problem["msg"], known)
    if isinstance(found, list):
        return refusal(INVALID_REQUEST, "Batches are not part of the protocol; send one message per line")
    return refusal(INVALID_REQUEST, 'A request has `"jsonrpc": "2.0"`, `id`, `method` and, if any, `params`', known)


def _chunk(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except OSError:  # the terminal is gone
        return b""


def _write_whole(fd: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(fd, rest) :]
