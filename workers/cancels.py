"""Stops a running call as soon as somebody asks for it: a notification names it, its row decides, the heartbeat misses none."""

import asyncio
import logging

from forge_tools.broker import Broker
from forge_tools.errors import ForgeError
from forge_tools.storage import Store
from workers.lanes.base import BodyLane

logger = logging.getLogger(__name__)


class Cancels:
    """Listens on the channel of this worker instance. Anybody may write there: what does not run here is nothing to ask for."""

    def __init__(self, broker: Broker, boot: str, store: Store, lane: BodyLane) -> None:
        self._boot = boot
        self._store = store
        self._lane = lane
        self._asked = asyncio.Event()
        broker.listen(boot, self._hear)

    def _hear(self, notification: bytes) -> None:
        if any(claim.id.encode() in notification for claim in self._lane.running()):
            self._asked.set()

    async def keep(self) -> None:
        """Cancel for ever. What is asked for while a statement is under way waits for the next one."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                for wakeup in await self._store.queue.cancels(self._boot):
                    self._lane.cancel(wakeup.id, wakeup.attempt)
            except ForgeError as error:
                logger.warning("Cancels cannot be read; the next heartbeat does", extra={"error": str(error)})
