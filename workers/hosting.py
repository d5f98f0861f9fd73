"""Keeps the tools of this worker's MCP servers registered and published as they come and change, and their states in SQL."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from forge_tools.base import BaseTool
from forge_tools.errors import ForgeError, ToolError
from forge_tools.records import ServerState
from forge_tools.registry import ScopedRegistry
from forge_tools.storage import Store

logger = logging.getLogger(__name__)


class Servers(Protocol):
    """The MCP servers of a worker; `on_change` is called on any thread when one of the others has something new."""

    on_change: Callable[[], None]

    def tools(self) -> list[BaseTool]: ...

    def states(self) -> tuple[ServerState, ...]: ...

    def start(self) -> list[BaseTool]: ...

    def close(self) -> None: ...


class Hosting:
    """Follows `servers`, if this worker has any; what they have that is new is registered, and then offered."""

    def __init__(self, servers: Servers | None, registry: ScopedRegistry) -> None:
        self._servers = servers
        self._registry = registry
        self._told: tuple[ServerState, ...] = ()

    def start(self) -> list[BaseTool]:
        """Start the servers; returns the tools that are there at once."""
        return [] if self._servers is None else self._servers.start()

    def states(self) -> tuple[ServerState, ...]:
        """How they are now."""
        return () if self._servers is None else self._servers.states()

    def close(self) -> None:
        """End the servers."""
        if self._servers is not None:
            self._servers.close()

    async def keep(self, store: Store, boot: str, offer: Callable[[], Awaitable[None]], retry_seconds: float) -> None:
        """Do so for ever: at once when there is news, and every `retry_seconds` while the database fails."""
        if (servers := self._servers) is None:
            return
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(news.set)

        servers.on_change = tell
        while True:
            news.clear()
            try:
                self._register_new(servers.tools())
                await offer()
                await self._tell(store, boot)
            except ForgeError as error:
                logger.warning("The state of MCP servers cannot be written", extra={"error": str(error)})
                await asyncio.sleep(retry_seconds)
            else:
                await news.wait()

    def _register_new(self, tools: Sequence[BaseTool]) -> None:
        known = {tool.name: tool.spec.digest for tool in self._registry.list_all()}
        for tool in tools:
            if known.get(tool.name) == tool.spec.digest:
                continue
            try:
                self._registry.register(tool, replace=True)
            except ToolError as error:
                logger.error("A tool of an MCP server cannot be offered", extra={"reason": error.message})

    async def _tell(self, store: Store, boot: str) -> None:
        if (states := self.states()) != self._told:
            await store.workers.tell_servers(boot, states)
            self._told = states
