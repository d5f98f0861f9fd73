"""Notices a worker that is alive but no longer consumes: it would still pull its calls from SQL, only slowly, for ever."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from forge_tools.broker import backlog, celery_app

if TYPE_CHECKING:
    from celery import Celery

LOOKS = 5
"""Looks in a row before a verdict: Celery may wait half a minute before it meets a broker again that had gone."""

FORCE_SECONDS = 30.0

logger = logging.getLogger(__name__)


class Consumption:
    """Looks at the broker queues now and then while this worker is idle; messages that stay there in its sight are proof.

    A look counts if the broker answers, messages wait, slots are free and no message came since the look before.
    """

    def __init__(self, broker_url: str, queues: Sequence[str], every: float) -> None:
        self._broker_url = broker_url
        self._queues = list(queues)
        self._every = every
        self._app: Celery | None = None
        self._suspicious = 0

    async def leave_when_deaf(self, is_idle: Callable[[], bool], woken_at: Callable[[], float]) -> None:
        """End this process once it is proven deaf: politely, then by force if Celery does not even hear that."""
        while True:
            await self.until_deaf(is_idle, woken_at)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(FORCE_SECONDS)
            self._suspicious = 0  # one that drains is not idle, and not to be asked twice
            if is_idle():  # it does not even drain
                logger.critical("This worker does not stop; it is killed")
                os.kill(os.getpid(), signal.SIGKILL)

    async def until_deaf(self, is_idle: Callable[[], bool], woken_at: Callable[[], float]) -> None:
        """Return once this worker is proven deaf; `woken_at` is when a message came last, on the monotonic clock."""
        while self._suspicious < LOOKS:
            since = time.monotonic()
            await asyncio.sleep(self._every)
            waiting = await asyncio.to_thread(self._count) if is_idle() and woken_at() < since else 0
            self._judge(waiting if is_idle() and woken_at() < since else 0)
        logger.critical(
            "Messages wait at the broker and none arrives here; this worker ends so that another takes its place",
            extra={"queues": ",".join(self._queues), "looks": LOOKS, "seconds": LOOKS * self._every},
        )

    def _judge(self, waiting: int) -> None:
        self._suspicious = self._suspicious + 1 if waiting else 0
        if self._suspicious > 1:
            logger.warning("Messages wait at the broker and none arrives here", extra={"waiting": waiting})

    def _count(self) -> int:
        """How many messages wait; none while the broker does not answer."""
        if self._app is None:
            self._app = celery_app(self._broker_url)
        try:
            return backlog(self._app, self._queues)
        except Exception as error:  # noqa: BLE001 every transport has its own errors; one that fails says nothing of us
            logger.debug("The broker queues cannot be read", extra={"error": str(error)})
            return 0
