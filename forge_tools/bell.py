"""Notifications with ids: to submitters of what ended, to worker instances of what to cancel. SQL says what is so."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from redis.asyncio import Redis
from redis.exceptions import RedisError

from forge_tools.broker import redis_client, speaks_redis

PREFIX = "forge:bell:"
RECONNECT_SECONDS = 0.5
CANCEL_SECONDS = 0.5
SILENCE_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Ringer:
    """The half that sends. Losing one costs a client a poll, and a worker the time until its next heartbeat."""

    def __init__(self, broker_url: str) -> None:
        self._redis = redis_client(broker_url, socket_timeout=3) if speaks_redis(broker_url) else None
        self._is_down = False

    async def ring(self, ids: Mapping[str, Sequence[str]]) -> None:
        """Publish `{channel: ids}` in one round trip."""
        if self._redis is None or not ids:
            return
        try:
            pipeline = self._redis.pipeline(transaction=False)
            for channel, its in ids.items():
                pipeline.publish(PREFIX + channel, " ".join(its))
            await pipeline.execute()
            self._is_down = False
        except (RedisError, OSError, TimeoutError) as error:
            if not self._is_down:
                logger.warning("Bell unavailable; clients will poll for results", extra={"error": str(error)})
            self._is_down = True

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()


class Listener:
    """The half that hears: calls `on_ids` with what comes, `on_gap` when something may be lost; reconnects by itself."""

    def __init__(
        self,
        broker_url: str,
        channel: str,
        on_ids: Callable[[list[str]], None],
        on_gap: Callable[[], None] = lambda: None,
    ) -> None:
        self._redis = redis_client(broker_url) if speaks_redis(broker_url) else None
        self._channel = PREFIX + channel
        self._on_ids = on_ids
        self._on_gap = on_gap
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._subscribed = asyncio.Event()

    @property
    def is_listening(self) -> bool:
        """Whether the subscription stands at this moment."""
        return self._subscribed.is_set()

    def start(self) -> None:
        """Begin to listen in the background; returns at once, and again, or after the close, does nothing."""
        if self._task is None and self._redis is not None and not self._is_closed:
            self._task = asyncio.ensure_future(self._listen(self._redis))

    async def ready(self, timeout: float) -> bool:
        """Wait until the subscription stands, at most `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._subscribed.wait()
        return self.is_listening

    async def close(self) -> None:
        self._is_closed = True
        while self._task is not None and not self._task.done():
            self._task.cancel()  # once is not enough: redis-py swallows a cancellation that meets its own time-out
            await asyncio.wait([self._task], timeout=CANCEL_SECONDS)

    async def _listen(self, redis: Redis) -> None:
        while True:
            with suppress(RedisError, OSError, TimeoutError):
                await self._subscription(redis)
            if self.is_listening:
                self._subscribed.clear()
                self._on_gap()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _subscription(self, redis: Redis) -> None:
        async with redis, redis.pubsub() as pubsub:
            async with asyncio.timeout(SILENCE_SECONDS):
                await pubsub.subscribe(self._channel)
            is_silent = False
            while True:
                message = await pubsub.get_message(timeout=SILENCE_SECONDS)
                if message is None and is_silent:
                    return  # not even a ping was answered: the connection is half-open, or the broker hangs
                is_silent = message is None
                if message is None:
                    await pubsub.ping()
                elif message["type"] == "subscribe":
                    self._subscribed.set()
                elif message["type"] == "message":
                    self._on_ids(message["data"].decode(errors="replace").split(" "))
