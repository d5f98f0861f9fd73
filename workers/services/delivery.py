"""Notices a worker that is alive but no longer consumes: it would still pull its calls from SQL, only slowly, for ever."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from forge_tools.broker import backlog, celery_app
from workers.services.service import Service

if TYPE_CHECKING:
    from celery import Celery

LOOKS = 5
"""Looks in a row before a verdict: Celery may wait half a minute before it meets a broker again that had gone."""

FORCE_SECONDS = 30.0

logger = logging.getLogger(__name__)


class Idle(Protocol):
    """What tells whether a worker waits for messages alone, and when it was woken last, on the monotonic clock."""

    woken_at: float

    def is_idle(self) -> bool: ...


class Delivery(Service):
    """Looks at the broker queues now and then while this worker is idle; messages that stay there in its sight are proof.

    A look counts if the broker answers, messages wait, slots are free and no message came since the look before. A worker that
    is proven deaf is ended: politely, then by force if Celery does not even hear that.
    """

    name = "delivery"
    failure = "The broker queues cannot be looked at"

    def __init__(self, broker_url: str, queues: Sequence[str], claims: Idle, interval: float) -> None:
        super().__init__(interval)
        self._broker_url = broker_url
        self._queues = list(queues)
        self._claims = claims
        self._app: Celery | None = None
        self._looked_at = time.monotonic()
        self._suspicious = 0

    async def step(self) -> float | None:
        if self._suspicious >= LOOKS:
            self._suspicious = 0  # one that drains is not idle, and not to be asked twice
            self._end_by_force()
            return None
        waiting = await asyncio.to_thread(self._count) if self._hears_nothing() else 0
        self._judge(waiting if self._hears_nothing() else 0)
        self._looked_at = time.monotonic()
        if self._suspicious < LOOKS:
            return None
        logger.critical(
            "Messages wait at the broker and none arrives here; this worker ends so that another takes its place",
            extra={"queues": ",".join(self._queues), "looks": LOOKS, "seconds": LOOKS * (self.interval or 0.0)},
        )
        os.kill(os.getpid(), signal.SIGTERM)
        return FORCE_SECONDS

    def _hears_nothing(self) -> bool:
        return self._claims.is_idle() and self._claims.woken_at < self._looked_at

    def _end_by_force(self) -> None:
        if self._claims.is_idle():  # it does not even drain
            logger.critical("This worker does not stop; it is killed")
            os.kill(os.getpid(), signal.SIGKILL)

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
