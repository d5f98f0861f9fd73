"""The reference MCP filesystem server: installed from npm into `.bench/`, and spoken to over its standard input and output."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.figures import LeftOutError
from benchmarks.processes import ROOT

PACKAGE = "@modelcontextprotocol/server-filesystem"
VERSION = "2026.8.31"
FOLDER = ROOT / ".bench" / "filesystem-server"
PROTOCOL = "2025-06-18"
INSTALL_SECONDS = 180
LINE_LIMIT = 64 << 20


def install() -> Path:
    """Install the server, unless it is; returns the program that node runs.

    Raises:
        LeftOutError: npm is not there, or could not.
    """
    program = FOLDER / "node_modules" / PACKAGE / "dist/index.js"
    stamp = FOLDER / "installed"
    if stamp.exists() and stamp.read_text() == VERSION and program.exists():
        return program
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise LeftOutError(f"npm and node are needed for {PACKAGE}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER.parent / ".gitignore").write_text("*\n")
    command = [
        npm,
        "install",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--prefix",
        str(FOLDER),
        f"{PACKAGE}@{VERSION}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LeftOutError(f"{PACKAGE} was not installed within {INSTALL_SECONDS} s") from error
    if done.returncode or not program.exists():
        raise LeftOutError(f"{PACKAGE} cannot be installed: {done.stderr.strip()[-300:]}")
    stamp.write_text(VERSION)
    return program


class FilesystemServer:
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
async def running(folder: Path) -> AsyncIterator[FilesystemServer]:
    """A server for one folder, that has been met."""
    process = await asyncio.create_subprocess_exec(
        "node", str(install()), str(folder), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, limit=LINE_LIMIT,
    )  # fmt: skip
    try:
        server = FilesystemServer(process)
        client = {"name": "benchmarks", "version": "1"}
        await server.request("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client})
        server.tell("notifications/initialized")
        yield server
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
