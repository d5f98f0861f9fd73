"""The configured servers of a worker: supervised on a thread of their own, so that none waits for a tool and no tool for one."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from mcp.types import Tool

from forge_tools.base import BaseTool
from forge_tools.errors import InvalidToolError
from forge_tools.mcp.hosting.configuration import Server, read_servers
from forge_tools.mcp.hosting.connection import Connection
from forge_tools.mcp.hosting.memory import Memory
from forge_tools.mcp.hosting.naming import tool_name, tool_prefix
from forge_tools.mcp.hosting.thread import ConnectionThread
from forge_tools.mcp.hosting.tools import ServerTool
from forge_tools.records import ServerState
from forge_tools.registry import check_definition
from forge_tools.validation import clean_text

STARTS_AT_ONCE = max(2, (os.cpu_count() or 2) // 2)
"""Servers that start at the same time: more of them miss their time on a busy machine."""

START_SECONDS = 15.0
"""How long a worker waits for its servers before it starts without those that are not there yet."""

MOST_LEFT_OUT = 50
"""Tools of one server of which its state says why they are not offered."""

logger = logging.getLogger(__name__)


def hosted_servers(configuration: Path, max_message_bytes: int, memory: Path) -> "HostedServers":
    """The servers of a file, not started yet. The folder `memory` holds what tools they had when they were last seen.

    Raises:
        ConfigurationError: for a file that cannot be used.
    """
    return HostedServers(read_servers(configuration), max_message_bytes, Memory(memory))


class HostedServers:
    """Keeps each server connected until `close`, and knows its tools and its state; safe to ask from any thread.

    `on_change` is called on the thread of the connections whenever `tools` or `states` have something new.
    """

    def __init__(self, servers: Sequence[Server], max_message_bytes: int, memory: Memory | None = None) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._memory = memory
        self._thread = ConnectionThread()
        self._offers = [
            _Offer(Connection(server, max_message_bytes=max_message_bytes, on_change=self._note), self._thread)
            for server in servers
        ]
        self._supervisors: list[asyncio.Task[None]] = []

    def start(self, seconds: float = START_SECONDS) -> list[BaseTool]:
        """Start all of them, some at a time; returns the tools that are known once each was tried or `seconds` are over.

        Until a server is there its tools are those that it had when it was last seen.
        """
        if self._offers:
            self._thread.submit(self._supervise(seconds)).result()
        return self.tools()

    def tools(self) -> list[BaseTool]:
        """Every tool that was offered so far; one that its server took away says so when it is called."""
        return [tool for offer in self._offers for tool in list(offer.tools.values())]

    def states(self) -> tuple[ServerState, ...]:
        return tuple(offer.state for offer in self._offers)

    def close(self) -> None:
        """Let go of the servers, and end those that were started here."""
        self._thread.stop(self._end())

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
        self.on_change()


class _Offer:
    """What is offered of one server, and why the rest is not."""

    def __init__(self, connection: Connection, thread: ConnectionThread) -> None:
        self.connection = connection
        self.tools: dict[str, ServerTool] = {}
        self._thread = thread
        self._listed: Mapping[str, Tool] = {}
        self._left_out: dict[str, str] = {}
        self.look()

    def renew(self, listed: Mapping[str, Tool]) -> bool:
        """Offer what the server lists now; returns whether that is news."""
        if listed == self._listed:
            return False
        self._listed, self._left_out = dict(listed), {}
        server = self.connection.server
        for tool in filter(lambda one: server.offers(one.name), listed.values()):
            name = tool_name(server.name, tool.name)
            if reason := self._refusal(tool):
                self._left_out[name] = reason
                facts = {"server": server.name, "reason": reason, "mcp_tool": tool.name}
                logger.warning("A tool of an MCP server cannot be offered", extra=facts)
        return True

    def look(self) -> None:
        """Take down how the server is, at one moment for those who ask on other threads."""
        at, server = self.connection, self.connection.server
        offered = [name for name in self._listed if tool_name(server.name, name) in self.tools]
        self.state = ServerState(
            server=clean_text(server.name),
            prefix=tool_prefix(server.name),
            status=at.status,
            since=at.since,
            tools=len(offered),
            why=clean_text(at.why),
            failures=at.failures,
            left_out=dict(islice(self._left_out.items(), MOST_LEFT_OUT)),
        )

    def _refusal(self, tool: Tool) -> str:
        """Offer a tool, or say why that cannot be."""
        if tool.execution is not None and tool.execution.task_support == "required":
            return "it can be called as a task only, which is not done here"
        try:
            made = ServerTool(tool, self.connection, self._thread)
            check_definition(made)
        except InvalidToolError as error:
            return error.message
        self.tools[made.name] = made
        return ""


def _tell_if_broken(supervisor: asyncio.Task[None]) -> None:
    if not supervisor.cancelled() and supervisor.exception() is not None:
        logger.critical("An MCP server is no longer supervised", exc_info=supervisor.exception())
