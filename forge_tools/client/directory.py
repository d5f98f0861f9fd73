"""What a client knows of the tools there are, and how it hears of changes."""

import asyncio
from abc import ABC, abstractmethod

from forge_tools.client.owner import NOT_CONNECTED
from forge_tools.client.snapshot import Snapshot
from forge_tools.errors import ConfigurationError
from forge_tools.records import Schema, ServerState, ToolCategory, ToolSpec, ToolVersion
from forge_tools.storage import Store

REFRESH_INTERVAL = 1.0


class Directory(ABC):
    """The catalogue as one snapshot: read when a client connects, and again when a call shows that it is old."""

    def __init__(self) -> None:
        self._snapshot = self._unread = Snapshot()
        self._refreshed_at = 0.0
        self._refreshing = asyncio.Lock()

    @property
    @abstractmethod
    def _open_store(self) -> Store: ...

    @abstractmethod
    async def refresh(self) -> None:
        """Read the catalogue again, and who serves what."""

    def specs(self) -> list[ToolSpec]:
        """The enabled tools as data, by name, from the catalogue snapshot; no I/O."""
        return list(self._catalogue.specs)

    def servers(self) -> tuple[ServerState, ...]:
        """The MCP servers that live workers host, and how they are; no I/O."""
        return self._catalogue.servers

    def get_all_schemas(self, format: str = "openai") -> list[Schema]:
        """Schemas of every enabled tool, from the catalogue snapshot; no I/O."""
        return self._catalogue.schemas(format)

    def get_schemas_by_category(self, category: ToolCategory, format: str = "openai") -> list[Schema]:
        """Schemas of one category, from the catalogue snapshot; no I/O."""
        return self._catalogue.schemas(format, category)

    @property
    def _catalogue(self) -> Snapshot:
        if self._snapshot is self._unread:
            raise ConfigurationError(NOT_CONNECTED)
        return self._snapshot

    async def enable(self, tool: str) -> None:
        """Have a disabled tool offered and run again.

        Raises:
            ToolNotFoundError: no worker ever published a tool of that name or alias.
        """
        await self._open_store.catalogue.switch(tool, is_enabled=True)
        await self.refresh()

    async def disable(self, tool: str) -> None:
        """Have a tool refused by clients and claimed by no worker, within a heartbeat. What runs may finish.

        Raises:
            ToolNotFoundError: no worker ever published a tool of that name or alias.
        """
        await self._open_store.catalogue.switch(tool, is_enabled=False)
        await self.refresh()

    async def versions(self, tool: str) -> list[ToolVersion]:
        """Every definition of a tool that a worker ever published, the default first.

        Raises:
            ToolNotFoundError: none was.
        """
        return await self._open_store.catalogue.versions(tool)

    async def pin(self, tool: str, definition: str) -> ToolVersion:
        """Have one definition of a tool offered and run, and no other, whatever workers publish; within a heartbeat.

        `definition` is its version, or its digest or the beginning of one.

        Raises:
            ToolNotFoundError: no worker ever published it; the message names those there are.
        """
        pinned = await self._open_store.catalogue.pin(tool, definition)
        await self.refresh()
        return pinned

    async def unpin(self, tool: str) -> ToolVersion:
        """Have the definition that a worker published last be the default again; returns it.

        Raises:
            ToolNotFoundError: no worker ever published the tool.
        """
        latest = await self._open_store.catalogue.unpin(tool)
        await self.refresh()
        return latest

    async def _refresh_since(self, moment: float) -> None:
        """See to it that the snapshot was read after `moment`; those who ask meanwhile share the next read."""
        async with self._refreshing:
            if self._refreshed_at < moment:
                await self.refresh()
