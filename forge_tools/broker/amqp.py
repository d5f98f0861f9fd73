"""Any other broker that kombu knows, such as RabbitMQ: published to on a thread, since kombu blocks; it carries no notifications."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from forge_tools.broker.base import CLOSE_SECONDS, PAUSE_SECONDS, Hear
from forge_tools.broker.celery_app import celery_app
from forge_tools.broker.message import TASK, Message, queue_name

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)


class KombuBroker:
    """Messages gather while one publish is under way. Clients poll for results, and workers hear of cancels by their heartbeat."""

    is_down = False
    is_listening = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._app: Celery | None = None
        self._pending: list[Message] = []
        self._publishing: asyncio.Task[None] | None = None
        self._failed_at = float("-inf")
        self._is_closed = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forge-publish")

    def publish(self, message: Message) -> None:
        if self._is_closed:
            return
        self._pending.append(message)
        if self._publishing is None:
            self._publishing = asyncio.ensure_future(self._publish_all())

    def notify(self, channel: str, notification: bytes) -> None: ...

    def listen(self, channel: str, hear: Hear, missed: Callable[[], None] = lambda: None) -> None: ...

    async def close(self) -> None:
        self._is_closed = True
        publishing = self._publishing
        if publishing is not None:
            await asyncio.wait([publishing], timeout=CLOSE_SECONDS)
            publishing.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._app is not None:
            self._app.close()

    async def _publish_all(self) -> None:
        try:
            while self._pending:
                messages, self._pending = self._pending, []
                if time.monotonic() - self._failed_at >= PAUSE_SECONDS:
                    await self._publish(messages)
        finally:
            self._publishing = None

    async def _publish(self, messages: Sequence[Message]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._send, messages)
        except Exception as error:  # noqa: BLE001 every transport has its own errors; a lost message costs time, never a call
            self._failed_at = time.monotonic()
            if not self.is_down:
                logger.warning("Broker unavailable; workers find calls in SQL", extra={"error": str(error)})
            self.is_down = True
        else:
            self.is_down = False

    def _send(self, messages: Sequence[Message]) -> None:
        if self._app is None:
            self._app = celery_app(self._url)
        for message in messages:
            self._app.send_task(
                TASK,
                args=[message.wakeups],
                queue=queue_name(message.queue, message.lane),
                soft_time_limit=message.limits.soft,
                time_limit=message.limits.hard,
                retry=False,
            )
