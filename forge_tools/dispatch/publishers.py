"""Two ways to put rings into a broker: Celery's own, and the same message written straight into a Redis list."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from forge_tools.broker import redis_client, speaks_redis
from forge_tools.dispatch.app import BULK, KEY_PREFIX, TASK, celery_app, list_name
from forge_tools.dispatch.bells import Bells, queue_name
from forge_tools.dispatch.message import arguments, envelope

if TYPE_CHECKING:
    from celery import Celery

SOCKET_SECONDS = 3.0


class Publisher(Protocol):
    """Puts messages into queues, all or none that anybody would miss: a ring that is repeated harms nobody."""

    async def publish(self, messages: Sequence[Bells]) -> None:
        """Raises whatever its transport does."""
        ...

    async def close(self) -> None: ...


def publisher_for(broker_url: str) -> Publisher:
    """The quickest way into that broker."""
    return RedisPublisher(broker_url) if speaks_redis(broker_url) else CeleryPublisher(broker_url)


class RedisPublisher:
    """Writes what kombu would write (virtual transport, Celery's message protocol 2) in one round trip, from the event loop.

    Celery's way costs a millisecond a message and a thread, most of it to build a client object for each.
    """

    def __init__(self, broker_url: str) -> None:
        self._redis = redis_client(broker_url, socket_timeout=SOCKET_SECONDS)

    async def publish(self, messages: Sequence[Bells]) -> None:
        if len(messages) == 1:
            await self._redis.lpush(*_entry(messages[0]))
            return
        pipeline = self._redis.pipeline(transaction=False)
        for message in messages:
            pipeline.lpush(*_entry(message))
        await pipeline.execute()

    async def close(self) -> None:
        await self._redis.aclose()


class CeleryPublisher:
    """Any broker that kombu knows, on a thread: kombu blocks."""

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        self._app: Celery | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forge-dispatch")

    async def publish(self, messages: Sequence[Bells]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._publish, messages)

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._app is not None:
            self._app.close()

    def _publish(self, messages: Sequence[Bells]) -> None:
        if self._app is None:
            self._app = celery_app(self._broker_url)
        for message in messages:
            self._app.send_task(
                TASK,
                args=arguments(message.rings),
                queue=queue_name(message.queue, message.lane),
                soft_time_limit=message.limits.soft,
                time_limit=message.limits.hard,
                retry=False,
            )


def _entry(message: Bells) -> tuple[str, str]:
    """The list that is the queue, and the message in it."""
    queue, priority = queue_name(message.queue, message.lane), BULK if message.is_bulk else 0
    return f"{KEY_PREFIX}{list_name(queue, priority)}", envelope(message.rings, queue, priority, message.limits)
