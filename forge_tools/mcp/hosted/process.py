"""A server that is a program: it ends with us, its messages are bounded, and any other output of it is harmless."""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import INTERNAL_ERROR
from mcp.types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError

from forge_tools.mcp.hosted.configuration import Server, ServerWalls
from forge_tools.mcp.stdio import Lines, LongLine, encoded, id_of, refusal
from forge_tools.sandbox.processes.commands import ControlLine
from forge_tools.sandbox.processes.streams import plain
from forge_tools.sandbox.walls.cgroups import Limits
from forge_tools.sandbox.web.egress import Egress
from forge_tools.signals import signal_name

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]

END_SECONDS = 2.0
"""The time for a server to end by itself after its input was closed, and again after SIGTERM."""

SHOWN_CHARS = 200
"""How much of one line logs and errors show."""

_CHUNK = 1 << 16
_HELD_OPEN_SECONDS = 0.5
"""How long to read on after a server has ended: a child of it may hold its output open."""

_WINDOW_SECONDS = 10.0
_LINES_A_WINDOW = 20
_REMEMBERED = 3

_cleaning: set[asyncio.Future[None]] = set()  # the loop has only weak references

logger = logging.getLogger(__name__)


class ServerProcess:
    """The transport to a program on pipes.

    `over` is set once no more communication is possible, and `broke` if that happened before we ended it.
    """

    broke = False

    def __init__(self, server: Server, max_message_bytes: int, walls: ServerWalls) -> None:
        self._server = server
        self._walls = walls
        self._egress = Egress(server.egress)
        self._max_message_bytes = max_message_bytes
        self._noise = ServerLog(logging.WARNING, "An MCP server wrote a line that is not a message", server.name)
        self._errors = ServerLog(logging.INFO, "An MCP server logs", server.name)
        self._facts: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.over = asyncio.Event()
        self._exited = asyncio.Event()
        self._gone = asyncio.Event()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[Incoming, Outgoing]]:
        """Start the program and give the SDK its streams; leaving ends the whole process tree."""
        with ExitStack() as theirs, ExitStack() as ours:
            stdin, self._stdin = await _to(theirs, ours)
            stdout, output = await _from(theirs, ours)
            stderr, errors = await _from(theirs, ours)
            control = self._walls.start(self._server, streams=(stdin, stdout, stderr), grace=END_SECONDS)
            self._line = ControlLine(control, self._hear, self._egress)
            self._facts = self._line.facts
            ours.callback(self._line.close)
            self._ours = ours.pop_all()
        heard, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, said = anyio.create_memory_object_stream[SessionMessage](0)
        for stream in (heard, incoming, outgoing, said):
            self._ours.callback(stream.close)
        parts = (self._read(output, heard), self._listen(errors), self._write(said))
        self._tasks = [asyncio.create_task(part) for part in parts]
        try:
            yield incoming, outgoing
        finally:
            self.broke = self.over.is_set()
            ending = asyncio.ensure_future(self._end())
            _cleaning.add(ending)
            ending.add_done_callback(_cleaning.discard)
            await asyncio.shield(ending)  # it continues even if we are cancelled

    def account(self) -> str:
        """Return how it ended, and its last output."""
        facts, ending = self._facts, "it closed its output"
        if "error" in facts:
            ending = f"{self._server.command} could not be started: {os.strerror(facts['error'])}"
        elif "memory" in facts:
            ending = Limits.given().exceeded_by("it")
        elif "signal" in facts:
            ending = f"it was ended by {signal_name(facts['signal'])}"
        elif "exit" in facts:
            ending = f"it ended with code {facts['exit']}"
        return ending + self.last_words()

    def last_words(self) -> str:
        """Return its last output besides messages, to append to a sentence about it."""
        last = self._errors.last() or self._noise.last()
        return f"; it last wrote: {last}" if last else ""

    def _hear(self, line: ControlLine) -> None:
        if line.has_ended and not self._exited.is_set():
            self._exited.set()
            asyncio.get_running_loop().call_later(_HELD_OPEN_SECONDS, self.over.set)
        if line.is_closed:
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
                self._noise.write(lines.rest())
                await _within(_HELD_OPEN_SECONDS, self._exited)  # so that waiting calls learn how it ended
                self.over.set()  # before the waiting calls are notified
        finally:
            self.over.set()  # whatever prevented further reading

    def _message(self, line: bytes | LongLine) -> SessionMessage | None:
        if isinstance(line, bytes) and not line.strip():
            return None
        if isinstance(line, bytes):
            try:
                return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
            except ValidationError as error:
                said = f"The answer is no message of the protocol: {_problem(error)}."
                id_ = None if b'"method"' in line else id_of(line)  # that of a request is the server's own
        else:
            limit = self._max_message_bytes
            said, id_ = f"The answer has {line.size:,} bytes; the limit is {limit:,}. Ask for less of it.", line.id
        self._noise.write(line)
        return None if id_ is None else SessionMessage(refusal(INTERNAL_ERROR, said, id_))  # else its call would wait

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        lines = Lines(_CHUNK)
        while chunk := await errors.read(_CHUNK):
            for line in lines.feed(chunk):
                self._errors.write(line)
        self._errors.write(lines.rest())

    async def _write(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        try:
            async with outgoing:
                async for said in outgoing:
                    self._stdin.write(encoded(said))
                    await self._stdin.drain()
        except OSError:  # it has closed its input: otherwise waiting calls would wait for ever
            self.over.set()

    async def _end(self) -> None:
        """Close its input; if it does not end by itself, end it with all that it started."""
        with self._ours:
            self._stdin.close()
            await _within(END_SECONDS, self._exited)
            self._line.end()
            await _within(2 * END_SECONDS, self._gone)
            await self._egress.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


class ServerLog:
    """Logs a server's output besides its messages, the first lines of each ten seconds, and remembers the last ones."""

    def __init__(self, level: int, message: str, server: str) -> None:
        self._level, self._message, self._server = level, message, server
        self._last: deque[str] = deque(maxlen=_REMEMBERED)
        self._window = 0.0
        self._told = 0

    def write(self, line: bytes | LongLine) -> None:
        text = shortened(line)
        if not text:
            return
        self._last.append(text)
        now = time.monotonic()
        if now - self._window > _WINDOW_SECONDS:
            self._window, self._told = now, 0
        self._told += 1
        if self._told <= _LINES_A_WINDOW:
            logger.log(self._level, self._message, extra={"server": self._server, "line": text})

    def last(self) -> str:
        return " / ".join(self._last)


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    is_json = first["type"] != "json_invalid"
    return "it has no result and no error, or an invalid one" if is_json else first["msg"]


def shortened(line: bytes | LongLine) -> str:
    start, size = (line.head, line.size) if isinstance(line, LongLine) else (line[: 4 * SHOWN_CHARS], len(line))
    text = plain(start.decode("utf-8", "replace").strip())
    if len(text) <= SHOWN_CHARS and size <= 4 * SHOWN_CHARS:
        return text
    return f"{text[:SHOWN_CHARS]}... ({size:,} bytes)"


async def _within(seconds: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def _to(theirs: ExitStack, ours: ExitStack) -> tuple[int, asyncio.StreamWriter]:
    """Create a pipe that a program reads and we write."""
    read, write = os.pipe()
    theirs.callback(os.close, read)
    loop = asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())  # the protocol whose writers can wait
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(write, "wb", 0))
    ours.callback(transport.close)  # the rest fails with the program, which is gone by then
    return read, asyncio.StreamWriter(transport, protocol, None, loop)


async def _from(theirs: ExitStack, ours: ExitStack) -> tuple[int, asyncio.StreamReader]:
    """Create a pipe that a program writes and we read."""
    read, write = os.pipe()
    theirs.callback(os.close, write)
    reader = asyncio.StreamReader(limit=_CHUNK)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read, "rb", 0))
    ours.callback(transport.close)
    return write, reader
