"""Keeps the tools of this worker's MCP servers registered and published as they come and change, and their states in SQL."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from forge_tools.errors import ToolError
from forge_tools.model import ServerState
from forge_tools.storage import Store
from forge_tools.tool.base import BaseTool
from forge_tools.tool.registry import ScopedRegistry
from workers.services.service import Service
from workers.services.tools import HostedTools

logger = logging.getLogger(__name__)


class Servers(Protocol):
    """The MCP servers of a worker; `on_change` is called on any thread when one of the others has something new."""

    on_change: Callable[[], None]

    def tools(self) -> list[BaseTool]: ...

    def states(self) -> tuple[ServerState, ...]: ...

    def start(self) -> list[BaseTool]: ...

    def close(self) -> None: ...


class ServerTools(Service):
    """Follows the servers: what they have that is new is registered, and then published."""

    name = "MCP servers"
    failure = "The state of MCP servers cannot be written"
    starts_at_once = True

    def __init__(
        self, servers: Servers, registry: ScopedRegistry, tools: HostedTools, store: Store, *, retry: float
    ) -> None:
        super().__init__(retry=retry)
        self._servers = servers
        self._registry = registry
        self._tools = tools
        self._store = store
        self._told: tuple[ServerState, ...] = ()
        self._loop = asyncio.get_running_loop()
        servers.on_change = self._changed

    async def step(self) -> None:
        self._register_new(self._servers.tools())
        await self._tools.publish()
        if (states := self._servers.states()) != self._told:
            await self._store.workers.tell_servers(self._tools.scope.instance, states)
            self._told = states

    def _changed(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.woken.set)

    def _register_new(self, tools: Sequence[BaseTool]) -> None:
        known = {tool.name: tool.spec.digest for tool in self._registry.list_all()}
        for tool in tools:
            if known.get(tool.name) == tool.spec.digest:
                continue
            try:
                self._registry.register(tool, replace=True)
            except ToolError as error:
                logger.error("A tool of an MCP server cannot be offered", extra={"reason": error.message})
