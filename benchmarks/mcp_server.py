"""Reference MCP servers: installed from npm into `.bench/`, and spoken to over their standard input and output."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.figures import LeftOutError
from benchmarks.processes import ROOT

VERSION = "2026.8.31"
FOLDER = ROOT / ".bench"
PROTOCOL = "2025-06-18"
INSTALL_SECONDS = 180
LINE_LIMIT = 64 << 20


def install(name: str) -> Path:
    """Install the server of that name, unless it is; returns the program that node runs.

    Raises:
        LeftOutError: npm is not there, or could not.
    """
    package, folder = f"@modelcontextprotocol/server-{name}", FOLDER / f"{name}-server"
    program, stamp = folder / "node_modules" / package / "dist/index.js", folder / "installed"
    if stamp.exists() and stamp.read_text() == VERSION and program.exists():
        return program
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise LeftOutError(f"npm and node are needed for {package}")
    folder.mkdir(parents=True, exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    command = [
        npm,
        "install",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--prefix",
        str(folder),
        f"{package}@{VERSION}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LeftOutError(f"{package} was not installed within {INSTALL_SECONDS} s") from error
    if done.returncode or not program.exists():
        raise LeftOutError(f"{package} cannot be installed: {done.stderr.strip()[-300:]}")
    stamp.write_text(VERSION)
    return program


class McpServer:
    """A running server; calls go one after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._id = 0

    async def call(self, tool: str, **arguments: Any) -> str:
        """Call a tool and return its text.

        Raises:
            RuntimeError: the tool says that it failed.
        """
        result = await self.request("tools/call", {"name": tool, "arguments": arguments})
        text = "".join(part.get("text", "") for part in result["content"])
        if result.get("isError"):
            raise RuntimeError(f"{tool} failed: {text[:200]}")
        return text

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._id += 1
        self._send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if message.get("id") == self._id and "method" not in message:
                if "error" in message:
                    raise RuntimeError(f"{method} failed: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            if "method" in message and "id" in message:  # it asks for our roots; we have none to tell
                self._send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "not here"}})
        raise RuntimeError("the server ended")

    def tell(self, method: str) -> None:
        self._send({"jsonrpc": "2.0", "method": method})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")


@asynccontextmanager
async def running(command: Sequence[str], environment: Mapping[str, str] | None = None) -> AsyncIterator[McpServer]:
    """A server that has been met."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        limit=LINE_LIMIT, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    try:
        server = McpServer(process)
        client = {"name": "benchmarks", "version": "1"}
        await server.request("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client})
        server.tell("notifications/initialized")
        yield server
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
