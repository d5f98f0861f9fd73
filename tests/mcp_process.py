"""`forge-tools mcp` as a process, for clients that write lines themselves and for those of the official SDK."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters

from tests.fleet import ROOT, wait_until

COMMAND = ("-P", "-m", "forge_tools.cli", "mcp")
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


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

    def __init__(self, environment: Mapping[str, str], folder: Path, *words: str) -> None:
        self.log = folder / f"mcp-{len(list(folder.glob('mcp-*.log')))}.log"
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *COMMAND, *words],
                cwd=ROOT,
                env={**environment, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._next_id = 0

    def greet(self) -> "McpProcess":
        self.ask("initialize", HELLO)
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def write(self, message: Mapping[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        self._next_id += 1
        self.write({"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params or {}})
        return self._next_id

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), f"the server has ended: {self.errors()}"
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0", message
        return message

    def answer(self, id_: int) -> dict[str, Any]:
        while (message := self.read()).get("id") != id_:
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
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        rest = self.process.stdout.read()
        self.process.stdout.close()
        self.process.wait(15)
        return [json.loads(line) for line in rest.splitlines()]

    def stop(self) -> None:
        """Leave nothing behind, whatever a test did."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                os.close(os.dup(stream.fileno()))
                stream.detach().close()  # type: ignore[attr-defined]  # a buffered pipe

    def errors(self) -> str:
        return self.log.read_text(errors="replace")


class McpEndpoint:
    """A server over HTTP at a port that the system chose."""

    def __init__(self, environment: Mapping[str, str], folder: Path, *words: str) -> None:
        self.log = folder / f"mcp-http-{len(list(folder.glob('mcp-http-*.log')))}.log"
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *COMMAND, "--http", "127.0.0.1:0", *words],
                cwd=ROOT,
                env={**environment, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
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
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
