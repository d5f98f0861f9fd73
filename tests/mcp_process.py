"""`forge-tools mcp` as a process, for clients that write lines themselves and for those of the official SDK."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from mcp import StdioServerParameters
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from tests.fleet import ROOT
from tests.waiting import wait_until, within
from tests.warm import CALLER, WarmInterpreter, below, shared

MODULE = ("forge_tools.cli", "mcp")
COMMAND = ("-P", "-m", *MODULE)
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


@shared
def warm_server() -> WarmInterpreter:
    """What forks the servers of tests; those that the SDK's client starts itself begin from nothing."""
    return WarmInterpreter("forge_tools.cli.mcp", *below("forge_tools.mcp"), *CALLER, "anyio._backends._asyncio")


def parameters(environment: Mapping[str, str], *words: str) -> StdioServerParameters:
    """What the SDK's client starts."""
    return StdioServerParameters(
        command=sys.executable,
        args=[*COMMAND, *words],
        env={**environment, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )


class McpProcess:
    """A server on pipes, whose every line of standard output must be JSON-RPC."""

    def __init__(
        self, environment: Mapping[str, str], folder: Path, *words: str, debug: bool = False, stderr: int | None = None
    ) -> None:
        self.log = folder / f"mcp-{len(list(folder.glob('mcp-*.log')))}.log"
        theirs_to_read, to_write = os.pipe()
        to_read, theirs_to_write = os.pipe()
        self._input, self._output = os.fdopen(to_write, "wb"), os.fdopen(to_read, "rb")
        with (
            self.log.open("wb") as errors,
            os.fdopen(theirs_to_read) as reads,
            os.fdopen(theirs_to_write, "w") as writes,
        ):
            self.process = warm_server().start(
                [MODULE[0], *(["--debug"] if debug else []), *MODULE[1:], *words],
                cwd=ROOT,
                env=environment,
                stdin=reads,
                stdout=writes,
                stderr=errors if stderr is None else stderr,
            )
        self._next_id = 0

    def greet(self) -> "McpProcess":
        self.ask("initialize", HELLO)
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def write(self, message: Mapping[str, Any] | bytes) -> None:
        self._input.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
        self._input.flush()

    def begin(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        self._next_id += 1
        self.write({"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params or {}})
        return self._next_id

    def read(self) -> dict[str, Any]:
        line = self._output.readline()
        assert line.endswith(b"\n"), f"the server has ended: {self.errors()}"
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0", message
        return message

    def answer(self, id_: int) -> dict[str, Any]:
        time_left = within(60, f"request {id_} is not answered")
        while next(time_left) and (message := self.read()).get("id") != id_:
            assert "method" in message, message
        return message

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return its result."""
        answer = self.answer(self.begin(method, params))
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", {"name": tool, "arguments": arguments})

    def lines(self) -> Iterator[bytes]:
        """What it says until it ends."""
        yield from self._output

    def close_input(self) -> None:
        self._input.close()

    def hang_up(self) -> list[dict[str, Any]]:
        """Close its input and wait for its end; return what it still said."""
        self._input.close()
        rest = self._output.read()
        self._output.close()
        self.process.wait(60)
        return [json.loads(line) for line in rest.splitlines()]

    def stop(self) -> None:
        """Leave nothing behind, whatever a test did."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self._input, self._output):
            if not stream.closed:
                os.close(os.dup(stream.fileno()))
                stream.detach().close()

    def errors(self) -> str:
        return self.log.read_text(errors="replace")


@asynccontextmanager
async def forked(environment: Mapping[str, str], *words: str) -> AsyncIterator[TransportStreams]:
    """A server of its own for the SDK's client, as if that had started it, without the time that its imports take."""
    to_client, heard = anyio.create_memory_object_stream[SessionMessage | Exception](100)
    said, from_client = anyio.create_memory_object_stream[SessionMessage](100)
    with tempfile.TemporaryDirectory() as folder:
        server = McpProcess(environment, Path(folder), *words)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, partial(_hand_on, server, to_client))
                group.start_soon(_write_down, from_client, server)
                async with heard, said:
                    yield heard, said
            await anyio.to_thread.run_sync(server.process.wait, 60)
        finally:
            server.stop()


def _hand_on(server: McpProcess, to_client: Any) -> None:
    for line in server.lines():
        with suppress(anyio.BrokenResourceError):  # what is still said to a client that has left
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            anyio.from_thread.run(to_client.send, SessionMessage(message))
    anyio.from_thread.run_sync(to_client.close)


async def _write_down(from_client: Any, server: McpProcess) -> None:
    try:
        async with from_client:
            async for message in from_client:
                server.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
    finally:
        server.close_input()


class McpEndpoint:
    """A server over HTTP at a port that the system chose."""

    def __init__(self, environment: Mapping[str, str], folder: Path, *words: str) -> None:
        self.log = folder / f"mcp-http-{len(list(folder.glob('mcp-http-*.log')))}.log"
        with self.log.open("wb") as errors, Path(os.devnull).open("wb") as nothing:
            self.process = warm_server().start(
                [*MODULE, "--http", "127.0.0.1:0", *words], cwd=ROOT, env=environment, stdout=nothing, stderr=errors
            )
        wait_until(lambda: "/mcp" in self.errors() or self.process.poll() is not None, 30, "no endpoint")
        assert self.process.poll() is None, self.errors()
        self.url = next(word for word in self.errors().split() if word.startswith("http://"))

    def errors(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
