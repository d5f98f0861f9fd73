"""A worker's configured servers, supervised on a separate thread so that they and tools never wait for each other."""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path

from mcp.types import Tool
from pydantic import TypeAdapter

from forge_tools.errors import InvalidToolError
from forge_tools.mcp.hosted.configuration import Server, read_servers
from forge_tools.mcp.hosted.connection import Connection
from forge_tools.mcp.hosted.tools import ServerTool, tool_name, tool_prefix
from forge_tools.mcp.hosted.walls import ServerWalls
from forge_tools.mcp.thread import LoopThread
from forge_tools.model import ServerState
from forge_tools.schema import clean_text
from forge_tools.tool.base import BaseTool
from forge_tools.tool.registry import check_definition

STARTS_AT_ONCE = max(2, (os.cpu_count() or 2) // 2)
"""How many servers start at the same time: with more, a busy machine misses their timeouts."""

START_SECONDS = 15.0
"""How long a worker waits for its servers before it starts without the missing ones."""

MOST_LEFT_OUT = 50
"""For how many tools of one server its state says why they are not offered."""

_END_SECONDS = 30.0
_TOOLS = TypeAdapter(list[Tool])

logger = logging.getLogger(__name__)


def hosted_servers(configuration: Path, max_message_bytes: int, memory: Path, walls: ServerWalls) -> "HostedServers":
    """Return the servers of a file, not started yet. The folder `memory` stores the tools they last had.

    Raises:
        ConfigurationError: for a file that cannot be used.
    """
    return HostedServers(read_servers(configuration, walls.usual), max_message_bytes, Memory(memory), walls)


class HostedServers:
    """Keeps each server connected until `close`, and knows its tools and its state. Thread-safe."""

    def __init__(
        self,
        servers: Sequence[Server],
        max_message_bytes: int,
        memory: "Memory | None" = None,
        walls: ServerWalls | None = None,
    ) -> None:
        self._walls = walls or ServerWalls()
        self._changed: Callable[[], None] = lambda: None
        self._memory = memory
        self._thread = LoopThread("forge-tools-mcp")
        self._offers = [
            _Offer(
                Connection(server, max_message_bytes=max_message_bytes, walls=self._walls, on_change=self._note),
                self._thread,
            )
            for server in servers
        ]
        self._supervisors: list[asyncio.Task[None]] = []

    def follow(self, changed: Callable[[], None]) -> None:
        """From now on call this, on the thread of the connections, whenever `tools` or `states` have something new."""
        self._changed = changed

    def start(self, seconds: float = START_SECONDS) -> list[BaseTool]:
        """Start all of them, some at a time; return the known tools once each was tried or `seconds` have passed.

        Until a server is connected, its tools are those it last had.
        """
        if self._offers:
            self._thread.submit(self._supervise(seconds)).result()
        return self.tools()

    def tools(self) -> list[BaseTool]:
        """Return every tool offered so far; one that its server removed reports that when called."""
        return [tool for offer in self._offers for tool in list(offer.tools.values())]

    def states(self) -> tuple[ServerState, ...]:
        return tuple(offer.state for offer in self._offers)

    def close(self) -> None:
        """Disconnect from the servers, and end those that were started here."""
        self._thread.stop(_END_SECONDS, self._end())
        self._walls.close()

    async def _supervise(self, seconds: float) -> None:
        starts = asyncio.Semaphore(STARTS_AT_ONCE)
        for offer in self._offers:
            if self._memory is not None:
                offer.renew({tool.name: tool for tool in self._memory.find(offer.connection.server)})
                offer.look()
            supervisor = asyncio.create_task(offer.connection.supervise(starts))
            supervisor.add_done_callback(_tell_if_broken)
            self._supervisors.append(supervisor)
        tried = [asyncio.create_task(offer.connection.was_tried.wait()) for offer in self._offers]
        _, late = await asyncio.wait(tried, timeout=seconds)
        for one in late:
            one.cancel()

    async def _end(self) -> None:
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)

    def _note(self, connection: Connection) -> None:
        offer = next(one for one in self._offers if one.connection is connection)
        is_news = connection.status == "serving" and offer.renew(connection.tools)
        offer.look()
        if is_news and self._memory is not None:
            self._memory.keep(connection.server, connection.tools.values())
        self._changed()


class _Offer:
    """The offered tools of one server, and why the others are not."""

    def __init__(self, connection: Connection, thread: LoopThread) -> None:
        self.connection = connection
        self.tools: dict[str, ServerTool] = {}
        self._thread = thread
        self._listed: Mapping[str, Tool] = {}
        self._left_out: dict[str, str] = {}
        self.look()

    def renew(self, listed: Mapping[str, Tool]) -> bool:
        """Offer what the server lists now; return whether anything changed."""
        if listed == self._listed:
            return False
        self._listed, self._left_out = dict(listed), {}
        server = self.connection.server
        for tool in filter(lambda one: server.offers(one.name), listed.values()):
            if reason := self._refusal(tool):
                self._left_out[tool_name(server.name, tool.name)] = reason
                facts = {"server": server.name, "reason": reason, "mcp_tool": tool.name}
                logger.warning("A tool of an MCP server cannot be offered", extra=facts)
        return True

    def look(self) -> None:
        """Record the state of the server consistently, for other threads."""
        at, server = self.connection, self.connection.server
        self.state = ServerState(
            server=clean_text(server.name),
            prefix=tool_prefix(server.name),
            status=at.status,
            since=at.since,
            tools=sum(tool_name(server.name, name) in self.tools for name in self._listed),
            why=clean_text(at.why),
            failures=at.failures,
            left_out=dict(islice(self._left_out.items(), MOST_LEFT_OUT)),
        )

    def _refusal(self, tool: Tool) -> str:
        """Offer a tool, or return why that is impossible."""
        if tool.execution is not None and tool.execution.task_support == "required":
            return "it can only be called as a task, which is not supported here"
        try:
            made = ServerTool(tool, self.connection, self._thread)
            check_definition(made)
        except InvalidToolError as error:
            return error.message
        self.tools[made.name] = made
        return ""


class Memory:
    """The tools that servers last had: a file for each server and way to start it, without its secrets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, server: Server, tools: Iterable[Tool]) -> None:
        """Replace the record of the server; if that fails, nothing is known next time."""
        path = self._path(server)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.write_bytes(_TOOLS.dump_json(list(tools), by_alias=True, exclude_unset=True))
            new.replace(path)
        except OSError as error:
            facts = {"server": server.name, "reason": str(error)}
            logger.warning("The tools of an MCP server are not kept", extra=facts)

    def find(self, server: Server) -> list[Tool]:
        """Return the tools it had; empty if nothing is known."""
        try:
            return _TOOLS.validate_json(self._path(server).read_bytes())
        except (OSError, ValueError):
            return []

    def _path(self, server: Server) -> Path:
        means = json.dumps([server.name, server.command, server.args, str(server.cwd), server.url])
        return self._folder / f"{sha256(means.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"


def _tell_if_broken(supervisor: asyncio.Task[None]) -> None:
    if not supervisor.cancelled() and supervisor.exception() is not None:
        logger.critical("An MCP server is no longer supervised", exc_info=supervisor.exception())
