"""Rolls up the figures of hours that are over: one worker at a time, beside the calls."""

import asyncio
from collections.abc import Callable, Set

from forge_tools.storage import Store
from workers.duties import repeat
from workers.recovery import is_eldest

LOOK_SECONDS = 300.0
REST = 4.0
"""An hour is followed by a rest of so many times what it took: a fifth of one processor at most, while there are many."""


class Rolling:
    """The oldest boot does it, every few minutes. Two that both think they are it do the same work twice, and no harm."""

    def __init__(self, store: Store, boot: str, living: Callable[[], Set[str]]) -> None:
        self._store = store
        self._boot = boot
        self._living = living

    async def keep(self) -> None:
        """Roll up for ever."""
        await repeat(self.step, LOOK_SECONDS, "Hours that are over are not rolled up yet")

    async def step(self) -> int:
        """Roll up all hours that are ready, if it is this worker's to do; returns how many those were."""
        count = 0
        if is_eldest(self._boot, self._living()):
            async for rolled in self._store.rollups.sweep():
                count += 1
                await asyncio.sleep(REST * rolled.seconds)
                if not is_eldest(self._boot, self._living()):
                    break
        return count
