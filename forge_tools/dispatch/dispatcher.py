"""Rings out, without ever making a caller wait for the broker. The row in SQL is the call."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from forge_tools.dispatch.bells import Bells, merge
from forge_tools.dispatch.publishers import publisher_for

PUBLISH_DEADLINE = 5.0
PAUSE_AFTER_FAILURE = 1.0

logger = logging.getLogger(__name__)


class Dispatcher:
    """Publishes rings from an event loop.

    Rings gather while one publish is under way and leave together. When the broker fails, rings are dropped for a moment
    and said so once: idle workers find due rows in SQL by themselves. `workers` says how many share each (queue, lane), as
    far as the owner of this dispatcher knows at the moment of a publish.
    """

    def __init__(self, broker_url: str, workers: Mapping[tuple[str, str], int] = MappingProxyType({})) -> None:
        self._workers = workers
        self._publisher = publisher_for(broker_url)
        self._pending: list[Bells] = []
        self._publishing: asyncio.Task[None] | None = None
        self._paused_until = 0.0
        self._is_down = False
        self._is_closed = False

    @property
    def is_down(self) -> bool:
        """Whether the last publish failed."""
        return self._is_down

    def ring(self, bells: Bells) -> None:
        """Queue rings for publishing and return at once; after the close they are dropped."""
        if self._is_closed:
            return
        self._pending.append(bells)
        if self._publishing is None:
            self._publishing = asyncio.ensure_future(self._publish_all())

    async def close(self) -> None:
        """Send what is pending, within a bounded time."""
        self._is_closed = True
        publishing = self._publishing
        if publishing is not None:
            await asyncio.wait([publishing], timeout=PUBLISH_DEADLINE)
            publishing.cancel()
        await self._publisher.close()

    async def _publish_all(self) -> None:
        try:
            while self._pending:
                bells, self._pending = self._pending, []
                if time.monotonic() >= self._paused_until:
                    await self._publish(bells)
        finally:
            self._publishing = None

    async def _publish(self, bells: Sequence[Bells]) -> None:
        try:
            await self._publisher.publish(merge(bells, self._workers))
        except Exception as error:  # noqa: BLE001 every transport has its own errors; a lost ring costs time, never a call
            self._paused_until = time.monotonic() + PAUSE_AFTER_FAILURE
            if not self._is_down:
                logger.warning("Broker unavailable; workers will find calls in SQL", extra={"error": str(error)})
            self._is_down = True
        else:
            self._is_down = False
