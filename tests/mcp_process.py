"""`forge-tools mcp` as a process, for clients that write lines themselves and for those of the official SDK."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters

from tests.fleet import ROOT
from tests.waiting import wait_until, within
from tests.warm import WarmInterpreter

MODULE = ("forge_tools.cli", "mcp")
COMMAND = ("-P", "-m", *MODULE)
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


@cache
def warm_server() -> WarmInterpreter:
    """What forks the servers that tests start themselves; those that the SDK's client starts begin from nothing."""
    return WarmInterpreter("forge_tools.cli.mcp", "forge_tools.mcp.serving", "forge_tools.client")


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

    def __init__(self, environment: Mapping[str, str], folder: Path, *words: str, debug: bool = False) -> None:
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
                stderr=errors,
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
                stream.detach().close()  # type: ignore[attr-defined]  # a buffered pipe

    def errors(self) -> str:
        return self.log.read_text(errors="replace")


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
