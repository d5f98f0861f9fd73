"""Stops a running call as soon as somebody asks for it: a notification names it, its row decides, the heartbeat misses none."""

import asyncio
import logging
from collections.abc import Sequence

from forge_tools.bell import Listener
from forge_tools.errors import ForgeError
from forge_tools.storage import Store
from workers.lanes.base import BodyLane

logger = logging.getLogger(__name__)


class Cancels:
    """Listens on the channel of this worker instance. Anybody may write there: what does not run here is nothing to ask for."""

    def __init__(self, broker_url: str, boot: str, store: Store, lane: BodyLane) -> None:
        self._boot = boot
        self._store = store
        self._lane = lane
        self._asked = asyncio.Event()
        self._listener = Listener(broker_url, boot, self._hear)

    def _hear(self, ids: Sequence[str]) -> None:
        if any(claim.id in ids for claim in self._lane.running()):
            self._asked.set()

    async def keep(self) -> None:
        """Listen for ever. What is asked for while a statement is under way waits for the next one."""
        self._listener.start()
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                try:
                    for ring in await self._store.queue.cancels(self._boot):
                        self._lane.cancel(ring.id, ring.attempt)
                except ForgeError as error:
                    logger.warning("Cancels cannot be read; the next heartbeat does", extra={"error": str(error)})
        finally:
            await self._listener.close()
