"""MCP servers that a test hosts, in its own process or on a worker."""

import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forge_tools.mcp.hosted.configuration import Server, ServerWalls
from forge_tools.mcp.hosted.servers import HostedServers, Memory
from forge_tools.model.overview import ServerState
from forge_tools.tool.base import ExecutionContext, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.fleet import ROOT, WORKER, Fleet, WorkerProcess
from tests.warm import WarmInterpreter, shared

RAW = str(ROOT / "tests" / "mcp_servers" / "raw.py")
GOOD = str(ROOT / "tests" / "mcp_servers" / "good.py")
CONTEXT = ExecutionContext(working_dir=".")


def raw(mode: str, *words: str, name: str = "raw", **settings: Any) -> Server:
    return Server(name=name, command=sys.executable, args=("-P", RAW, mode, *words), cwd=ROOT, **settings)


def good(**settings: Any) -> Server:
    return Server(name="good", command=sys.executable, args=("-P", GOOD), cwd=ROOT, **settings)


class Host:
    """The tools of some servers, called as any others."""

    def __init__(self) -> None:
        self._hosted: list[HostedServers] = []
        self._folder = TemporaryDirectory()

    async def start(
        self,
        *servers: Server,
        max_message_bytes: int = 1_000_000,
        memory: Memory | None = None,
        patience: float = 60.0,
        walls: ServerWalls | None = None,
    ) -> ToolExecutor:
        """Start the servers, and wait until each was tried."""
        memory = memory or Memory(Path(self._folder.name, str(len(self._hosted))))
        self._hosted.append(HostedServers(servers, max_message_bytes, memory, walls or ServerWalls()))
        registry = ScopedRegistry()
        registry.register_many(await asyncio.to_thread(self._hosted[-1].start, patience))
        return ToolExecutor(registry)

    def states(self) -> dict[str, ServerState]:
        """How the servers are that were started last."""
        return {state.server: state for state in self._hosted[-1].states()}

    def offered(self) -> list[str]:
        """The names of their tools by now."""
        return [tool.name for tool in self._hosted[-1].tools()]

    async def stop(self) -> None:
        for hosted in self._hosted:
            await asyncio.to_thread(hosted.close)
        self._folder.cleanup()


async def call(executor: ToolExecutor, name: str, **arguments: Any) -> ToolResult:
    return await executor.execute(name, CONTEXT, **arguments)


@shared
def warm_host() -> WarmInterpreter:
    """What forks workers that host servers and so import the SDK of MCP as well."""
    return WarmInterpreter(*WORKER, "forge_tools.mcp.hosted.servers")


def hosting_worker(
    fleet: Fleet, servers: dict[str, Any], categories: str = "mcp", *, folder: Path | None = None, **settings: str
) -> WorkerProcess:
    """Start a worker of the async lane that hosts those servers, whose configuration is in that folder; keywords are FORGE_* settings."""
    configuration = (folder or fleet.folder) / "mcp.json"
    configuration.write_text(json.dumps({"mcpServers": servers}))
    log = fleet.folder / f"worker-{len(fleet.workers)}.log"
    words = ["workers", "--lane", "async", "--categories", categories, "--no-builtins"]
    with log.open("wb") as output:
        environment = fleet.environment(mcp_config=str(configuration), **settings)
        process = warm_host().start(words, cwd=ROOT, env=environment, stdout=output, stderr=output)
    worker = WorkerProcess(process, log)
    fleet.workers.append(worker)
    worker.wait_ready()
    return worker
