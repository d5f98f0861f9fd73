"""What a client knows of the tools there are, and how it hears of changes."""

import asyncio
import time
from abc import ABC, abstractmethod

from forge_tools.client.snapshot import Snapshot
from forge_tools.errors import ForgeError
from forge_tools.records import Schema, ToolCategory, ToolSpec
from forge_tools.storage import Store

REFRESH_INTERVAL = 1.0
HEED_SECONDS = 1.0
"""How long a call waits at most to hear which tools were disabled."""


class Directory(ABC):
    """The catalogue as one snapshot: read when a client connects, and again when a call shows that it is old."""

    def __init__(self) -> None:
        self._snapshot = Snapshot()
        self._refreshed_at = self._heeded_at = 0.0
        self._refreshing = asyncio.Lock()
        self._heeding: asyncio.Event | None = None
        self._heed_task: asyncio.Task[None] | None = None

    @property
    @abstractmethod
    def _open_store(self) -> Store: ...

    @abstractmethod
    async def refresh(self) -> None:
        """Read the catalogue again, and who serves what."""

    def specs(self) -> list[ToolSpec]:
        """The enabled tools as data, by name, from the catalogue snapshot; no I/O."""
        return list(self._snapshot.specs)

    def get_all_schemas(self, format: str = "openai") -> list[Schema]:
        """Schemas of every enabled tool, from the catalogue snapshot; no I/O."""
        return self._snapshot.schemas(format)

    def get_schemas_by_category(self, category: ToolCategory, format: str = "openai") -> list[Schema]:
        """Schemas of one category, from the catalogue snapshot; no I/O."""
        return self._snapshot.schemas(format, category)

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

    async def _refresh_since(self, moment: float) -> None:
        """See to it that the snapshot was read after `moment`; those who ask meanwhile share the next read."""
        async with self._refreshing:
            if self._refreshed_at < moment:
                await self.refresh()

    async def _heed_switches(self) -> None:
        """Hear, at most once a second, whether tools were disabled or enabled since; calls of that moment wait for it.

        They go on all at once, so that they are still stored together.
        """
        if time.monotonic() - max(self._heeded_at, self._refreshed_at) < REFRESH_INTERVAL:
            return
        if self._heeding is None:
            self._heeding = asyncio.Event()  # of thousands that wait each costs one future, unlike with a shielded task
            self._heed_task = asyncio.ensure_future(self._heed(self._heeding))
        await self._heeding.wait()

    async def _heed(self, heeded: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(HEED_SECONDS):
                if await self._open_store.catalogue.disabled() != self._snapshot.disabled:
                    await self._refresh_since(time.monotonic())
        except (ForgeError, TimeoutError):  # storing the call says it better
            pass
        finally:
            self._heeded_at, self._heeding = time.monotonic(), None
            heeded.set()
