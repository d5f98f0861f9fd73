"""Which broker a URL means, and the Celery app with which workers consume and clients publish, except over Redis."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from forge_tools.broker.message import (
    BULK,
    CLOSE_SECONDS,
    KEY_PREFIX,
    PAUSE_SECONDS,
    TASK,
    Broker,
    Hear,
    Message,
    list_name,
    queue_name,
)

if TYPE_CHECKING:
    from celery import Celery

_PRIORITIES = (0, BULK)
_OF_RABBIT = {
    "task_default_queue_type": "quorum",
    "task_create_missing_queue_type": "quorum",
    "worker_detect_quorum_queues": True,
    "broker_native_delayed_delivery_queue_type": "classic",
    "broker_heartbeat": 20,
}

logger = logging.getLogger(__name__)


def open_broker(url: str) -> Broker:
    """Return the fastest client for that broker; it connects on first use.

    Raises:
        ConfigurationError: that is not the URL of a broker.
    """
    if speaks_redis(url):
        from forge_tools.broker.redis import RedisBroker  # here, to spare those who import a client and call nothing

        return RedisBroker(url)
    return KombuBroker(url)


def speaks_redis(url: str) -> bool:
    """Return whether that broker is a Redis or Valkey that is reached directly."""
    return url.startswith(("redis", "valkey", "unix"))


def celery_app(broker_url: str) -> "Celery":
    """Build the Celery app that clients publish with and workers consume with; JSON only, no result backend.

    Each setting that differs from Celery's default is there because its default loses, repeats or blocks: see
    docs/celery.md.
    """
    from celery import Celery  # the only place where clients load Celery, if at all: at their first publish

    # Not the current app: the process of an agent may have a Celery app of its own.
    app = Celery("forge_tools", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        worker_cancel_long_running_tasks_on_connection_loss=True,
        worker_enable_prefetch_count_reduction=False,
        worker_proc_alive_timeout=15,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,
        broker_connection_timeout=3,
        broker_pool_acquire_timeout=3,
        task_publish_retry=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        **({} if speaks_redis(broker_url) else _OF_RABBIT),
        broker_transport_options=_transport_options(broker_url),
    )
    return app


def backlog(app: "Celery", queues: Sequence[str]) -> int:
    """Count the messages in those broker queues; a missing queue holds none. Blocks; raises what kombu raises."""
    if speaks_redis(app.conf.broker_url):  # two commands per queue, where kombu needs a dozen
        connections: Any = app.pool  # celery-types takes its content for producers
        with connections.acquire(block=True) as kept:
            client = kept.default_channel.client
            return sum(client.llen(list_name(queue, priority)) for queue in queues for priority in _PRIORITIES)
    waiting = 0
    with app.connection_for_write() as connection:
        for queue in queues:  # a channel for each: asking for a missing queue closes it
            with suppress(*connection.channel_errors), connection.channel() as opened:
                channel: Any = opened  # celery-types declares less than every transport has
                waiting += channel.queue_declare(queue, passive=True).message_count
    return waiting


class KombuBroker:
    """Messages gather while one publish is under way. Clients poll for results; heartbeats show cancels to workers."""

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
        self._thread.shutdown(wait=False, cancel_futures=True)  # a broker that is frozen holds its thread for long
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
                retry=True,  # once: that a kept connection was cut shows only when it is used
                retry_policy={"max_retries": 1, "interval_start": 0},
            )


def _transport_options(broker_url: str) -> dict[str, Any]:
    reconnecting = {"max_retries": 1, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.5}
    if not speaks_redis(broker_url):
        return {"confirm_publish": True, "read_timeout": 3, "write_timeout": 3, **reconnecting}
    return {
        "socket_timeout": 5,
        "socket_connect_timeout": 3,
        "health_check_interval": 15,
        **reconnecting,
        "ack_emulation": False,
        "priority_steps": list(_PRIORITIES),
        "global_keyprefix": KEY_PREFIX,
    }
