"""A server that is a program: started so that it ends with us, its messages bounded, whatever else it writes survived."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import INTERNAL_ERROR, ErrorData, JSONRPCError
from mcp.types.jsonrpc import jsonrpc_message_adapter

from forge_tools.mcp.hosting.configuration import Server
from forge_tools.mcp.hosting.voice import Voice
from forge_tools.mcp.lines import Lines, LongLine
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.processes.spawner import SPAWNER

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]

END_SECONDS = 2.0
"""For a server whose input was closed to end by itself, and again after SIGTERM."""

_CHUNK = 1 << 16
_HELD_OPEN_SECONDS = 0.5  # by a child of a server that has ended

_cleaning: set[asyncio.Future[None]] = set()

logger = logging.getLogger(__name__)


class ServerProcess:
    """The transport to a program on pipes: `async with` gives the SDK its streams, and its end is the end of the whole tree.

    `over` is set once nothing more can be heard from it or said to it, and `broke` where that was so before we let it go.
    """

    broke = False

    def __init__(self, server: Server, max_message_bytes: int) -> None:
        self._server = server
        self._max_message_bytes = max_message_bytes
        self._noise = Voice(logger, logging.WARNING, "An MCP server wrote what is no message", server.name)
        self._errors = Voice(logger, logging.INFO, "An MCP server says", server.name)
        self._facts: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.over = asyncio.Event()
        self._exited = asyncio.Event()
        self._gone = asyncio.Event()

    async def __aenter__(self) -> tuple[Incoming, Outgoing]:
        with ExitStack() as theirs, ExitStack() as ours:
            stdin, self._stdin = await _to(theirs, ours)
            stdout, output = await _from(theirs, ours)
            stderr, errors = await _from(theirs, ours)
            self._control = self._start(theirs, (stdin, stdout, stderr))
            ours.callback(self._control.close)
            self._ours = ours.pop_all()
        heard, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, said = anyio.create_memory_object_stream[SessionMessage](0)
        for stream in (heard, incoming, outgoing, said):
            self._ours.callback(stream.close)
        self._begin(self._supervise(), self._read(output, heard), self._listen(errors), self._write(said))
        return incoming, outgoing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.broke = self.over.is_set()
        ending = asyncio.ensure_future(self._end())
        _cleaning.add(ending)
        ending.add_done_callback(_cleaning.discard)
        await asyncio.shield(ending)  # it goes on even if we are cancelled

    def account(self) -> str:
        """How it ended, and what it wrote last."""
        return self._ending() + self.last_words()

    def last_words(self) -> str:
        """What it wrote last beside its messages, to be put behind a sentence about it."""
        last = self._errors.last() or self._noise.last()
        return f"; it last wrote: {last}" if last else ""

    def _ending(self) -> str:
        if "error" in self._facts:
            return f"{self._server.command} could not be started: {os.strerror(self._facts['error'])}"
        if "signal" in self._facts:
            return f"it was ended by {_name_of(self._facts['signal'])}"
        if "exit" in self._facts:
            return f"it ended with code {self._facts['exit']}"
        return "it closed its output"

    def _start(self, theirs: ExitStack, streams: tuple[int, int, int]) -> socket.socket:
        folder = os.open(self._server.cwd, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        theirs.callback(os.close, folder)
        command = [self._server.command, *self._server.args]
        environment = {**child_environment(), **self._server.env}
        control = SPAWNER.start(command, environment, folder=folder, streams=streams, grace=END_SECONDS)
        control.setblocking(False)  # noqa: FBT003  the method takes no keyword
        return control

    def _begin(self, *parts: Coroutine[Any, Any, None]) -> None:
        self._tasks = [asyncio.create_task(part) for part in parts]

    async def _supervise(self) -> None:
        """Hear from its supervisor how it goes."""
        loop = asyncio.get_running_loop()
        heard = b""
        with suppress(OSError):
            while data := await loop.sock_recv(self._control, 4096):
                *lines, heard = (heard + data).split(b"\n")
                for line in lines:
                    kind, number = line.split()
                    self._facts[kind.decode()] = int(number)
                if self._facts.keys() & {"exit", "signal", "error"} and not self._exited.is_set():
                    self._exited.set()
                    loop.call_later(_HELD_OPEN_SECONDS, self.over.set)
        if not self._exited.is_set():  # its supervisor was killed, and the kernel killed the server with it
            self._facts.setdefault("signal", signal.SIGKILL)
        self._exited.set()
        self._gone.set()
        self.over.set()

    async def _read(
        self, output: asyncio.StreamReader, incoming: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        lines = Lines(self._max_message_bytes)
        try:
            async with incoming:
                while chunk := await output.read(_CHUNK):
                    for line in lines.feed(chunk):
                        if (message := self._message(line)) is not None:
                            await incoming.send(message)
                self._noise.hear(lines.rest())
                with suppress(TimeoutError):  # so that who waits for an answer is told how it ended
                    await asyncio.wait_for(self._exited.wait(), _HELD_OPEN_SECONDS)
                self.over.set()  # before those who wait are told
        finally:
            self.over.set()  # whatever kept us from reading on

    def _message(self, line: bytes | LongLine) -> SessionMessage | None:
        if isinstance(line, LongLine):
            return self._too_long(line)
        if not line.strip():
            return None
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            self._noise.hear(line)
            return None

    def _too_long(self, line: LongLine) -> SessionMessage | None:
        """Answer in place of what nobody can hold."""
        self._noise.hear(line)
        if line.id is None:
            return None
        said = f"The answer has {line.size:,} bytes; the limit is {self._max_message_bytes:,}. Ask for less of it."
        return SessionMessage(
            JSONRPCError(jsonrpc="2.0", id=line.id, error=ErrorData(code=INTERNAL_ERROR, message=said))
        )

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        lines = Lines(_CHUNK)
        while chunk := await errors.read(_CHUNK):
            for line in lines.feed(chunk):
                self._errors.hear(line)
        self._errors.hear(lines.rest())

    async def _write(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        try:
            async with outgoing:
                async for said in outgoing:
                    self._stdin.write(said.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                    await self._stdin.drain()
        except OSError:  # it has closed its input: whoever waits for an answer would wait for ever
            self.over.set()

    async def _end(self) -> None:
        """Close its input, and end what does not end by itself, with all that it started."""
        with self._ours:
            self._stdin.close()
            await _within(END_SECONDS, self._exited)
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            await _within(2 * END_SECONDS, self._gone)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._noise.finish()
            self._errors.finish()


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


async def _within(seconds: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def _to(theirs: ExitStack, ours: ExitStack) -> tuple[int, asyncio.StreamWriter]:
    """Make a pipe that a program reads and we write."""
    read, write = os.pipe()
    theirs.callback(os.close, read)
    loop = asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())  # the one that knows how a writer has to wait
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(write, "wb", 0))
    ours.callback(transport.close)  # what it still holds fails with the program, which is gone by then
    return read, asyncio.StreamWriter(transport, protocol, None, loop)


async def _from(theirs: ExitStack, ours: ExitStack) -> tuple[int, asyncio.StreamReader]:
    """Make a pipe that a program writes and we read."""
    read, write = os.pipe()
    theirs.callback(os.close, write)
    reader = asyncio.StreamReader(limit=_CHUNK)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read, "rb", 0))
    ours.callback(transport.close)
    return write, reader
