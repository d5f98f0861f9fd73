"""The tools of the configured servers, for a worker to register."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from mcp.types import Tool

from forge_tools.base import BaseTool
from forge_tools.errors import InvalidToolError
from forge_tools.mcp.hosting.configuration import Server, read_servers
from forge_tools.mcp.hosting.connection import Connection, DisconnectedError
from forge_tools.mcp.hosting.memory import Memory
from forge_tools.mcp.hosting.thread import ConnectionThread
from forge_tools.mcp.hosting.tools import ServerTool
from forge_tools.registry import check_definition

logger = logging.getLogger(__name__)


def offered_tools(configuration: Path, max_message_bytes: int, memory: Path) -> list[BaseTool]:
    """Connect to the servers of a file, all at once, and return their tools. Each server is let go when its tools are shut down.

    A server that is not there costs no more time than its `startTimeout`, and has the tools that it had when it was last seen, which the
    folder `memory` tells.

    Raises:
        ConfigurationError: for a file that cannot be used.
    """
    return tools_of(read_servers(configuration), max_message_bytes, Memory(memory))


def tools_of(servers: Sequence[Server], max_message_bytes: int, memory: Memory | None = None) -> list[BaseTool]:
    """Do what `offered_tools` does, for servers that are known."""
    if not servers:
        return []
    connections = [Connection(server, max_message_bytes=max_message_bytes) for server in servers]
    thread = ConnectionThread(connections)
    lists = thread.submit(_lists(connections, memory)).result()
    return [tool for pair in zip(connections, lists, strict=True) for tool in _offered(*pair, thread)]


async def _lists(connections: Sequence[Connection], memory: Memory | None) -> list[list[Tool]]:
    return await asyncio.gather(*(_list(connection, memory) for connection in connections))


async def _list(connection: Connection, memory: Memory | None) -> list[Tool]:
    server = connection.server
    try:
        tools = await connection.list_tools()
    except DisconnectedError as error:
        known = memory.find(server) if memory is not None else []
        facts = {"server": server.name, "reason": error.message, "tools": len(known)}
        if known:
            logger.warning("An MCP server is offered with the tools that it had when it was last seen", extra=facts)
        else:
            logger.error("The tools of an MCP server are not offered", extra=facts)
        return known
    if memory is not None:
        memory.keep(server, tools)
    return tools


def _offered(connection: Connection, tools: Sequence[Tool], thread: ConnectionThread) -> Iterator[ServerTool]:
    server = connection.server
    for tool in tools:
        if not server.offers(tool.name):
            continue
        made = ServerTool(tool, connection, thread)
        try:
            check_definition(made)
        except InvalidToolError as error:
            facts = {"server": server.name, "reason": error.message, "mcp_tool": tool.name}
            logger.warning("A tool of an MCP server cannot be offered", extra=facts)
            continue
        yield made
