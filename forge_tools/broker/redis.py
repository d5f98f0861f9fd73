"""A broker that speaks Redis' protocol: one persistent connection; commands are sent at once, replies only checked."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from forge_tools.broker.message import (
    BULK,
    CHANNEL_PREFIX,
    CLOSE_SECONDS,
    KEY_PREFIX,
    PAUSE_SECONDS,
    Hear,
    Message,
    envelope,
    list_name,
    queue_name,
)
from forge_tools.deadlines import answered_within
from forge_tools.errors import ConfigurationError
from forge_tools.urls import for_redis

CONNECT_SECONDS = 3.0
RECONNECT_SECONDS = 0.5
"""The pause between two tries of a listener to connect."""
SILENCE_SECONDS = 5.0
"""How long a server may be silent before it is pinged; after as long again without an answer, it counts as gone."""
MOST_UNSENT = 1000
"""How many commands may wait for the connection."""
MOST_BYTES = 4 << 20
"""The most for one reply, and for commands that the server does not take; beyond it the connection is dropped."""

logger = logging.getLogger(__name__)


class RedisBroker(asyncio.Protocol):
    """Celery's client costs a millisecond and a thread per message, the Redis client half a millisecond.

    A command whose reply is an error, or never came, is lost; this is logged once per outage.
    """

    is_down = False
    is_listening = False

    def __init__(self, url: str) -> None:
        # RESP3, since in RESP2 a connection that listens can do nothing else. Without timeouts of the client, which
        # would blame the server for a busy loop.
        try:
            redis = Redis.from_url(for_redis(url), socket_connect_timeout=None, socket_timeout=None, protocol=3)
        except ValueError as error:
            raise ConfigurationError(f"FORGE_BROKER_URL is not the URL of a broker: {error}") from error
        self._pool = redis.connection_pool
        self._channel: bytes | None = None
        self._hear: Hear = lambda _: None
        self._missed: Callable[[], None] = lambda: None
        self._writer: asyncio.StreamWriter | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._unsent: list[bytes] = []
        self._unanswered = 0
        self._unread = b""
        self._heard_at = 0.0
        self._is_asked = False
        self._failed_at = float("-inf")
        self._is_closed = False
        self._settled: asyncio.Future[None] | None = None

    def publish(self, message: Message) -> None:
        """Write what kombu would write: its virtual transport, Celery's message protocol 2."""
        queue, priority = queue_name(message.queue, message.lane), BULK if message.is_bulk else 0
        text = json.dumps(envelope(message.wakeups, queue, priority, message.limits))
        self._send(b"LPUSH", f"{KEY_PREFIX}{list_name(queue, priority)}".encode(), text.encode())

    def notify(self, channel: str, notification: bytes) -> None:
        self._send(b"PUBLISH", f"{CHANNEL_PREFIX}{channel}".encode(), notification)

    def listen(self, channel: str, hear: Hear, missed: Callable[[], None] = lambda: None) -> None:
        if self._channel is not None or self._is_closed:
            return
        self._channel, self._hear, self._missed = f"{CHANNEL_PREFIX}{channel}".encode(), hear, missed
        if self._writer is None:
            self._connect_soon()
        else:
            self._subscribe(self._writer)

    async def close(self) -> None:
        self._is_closed = True
        if self._unanswered or (self._unsent and self._connecting is not None):
            self._settled = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._settled], timeout=CLOSE_SECONDS)
        connecting = self._connecting
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait([connecting], timeout=CLOSE_SECONDS)
        self._let_go()

    # The connection: made on first use, and made again for a listener.

    def _send(self, *words: bytes) -> None:
        command = _command(*words)
        if self._writer is not None:
            self._write(self._writer, command)
        elif not self._is_closed and time.monotonic() - self._failed_at >= PAUSE_SECONDS:
            if len(self._unsent) < MOST_UNSENT:
                self._unsent.append(command)
            self._connect_soon()

    def _write(self, writer: asyncio.StreamWriter, command: bytes) -> None:
        transport = writer.transport
        if transport.get_write_buffer_size() > MOST_BYTES:
            self._give_up("it accepts no more data")
            return
        self._unanswered += 1
        transport.write(command)

    def _connect_soon(self) -> None:
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        try:
            while not self._is_closed or self._unsent:  # after a close, only to send what is left
                try:
                    async with answered_within(CONNECT_SECONDS):
                        writer = await self._connected()
                    self._begin(writer)
                except (RedisError, OSError, TimeoutError) as error:
                    self._fail(str(error) or type(error).__name__)
                if self._writer is not None or self._channel is None:
                    return
                await asyncio.sleep(RECONNECT_SECONDS)
        finally:
            self._connecting = None

    async def _connected(self) -> asyncio.StreamWriter:
        """Return a connection past its greeting: encrypted, authenticated and in its database, as the URL says."""
        pool: Any = self._pool
        connection = pool.make_connection()
        await connection.connect()
        writer = cast(asyncio.StreamWriter, connection._writer)  # noqa: SLF001  the client has no public access to it
        connection._writer = connection._reader = None  # noqa: SLF001  it is ours from now on
        return writer

    def _begin(self, writer: asyncio.StreamWriter) -> None:
        self._writer, self._unread, self._unanswered = writer, b"", 0
        self._heard_at, self._is_asked = asyncio.get_running_loop().time(), False
        writer.transport.set_protocol(self)
        self._subscribe(writer)  # first: calls in what is sent next may end, and notify, at once
        unsent, self._unsent = self._unsent, []
        for command in unsent:
            self._write(writer, command)
        self._watch = asyncio.get_running_loop().call_later(SILENCE_SECONDS, self._check)

    def _subscribe(self, writer: asyncio.StreamWriter) -> None:
        if self._channel is not None:
            writer.transport.write(_command(b"SUBSCRIBE", self._channel))  # answered by a push, not by a reply

    def _check(self) -> None:
        if self._writer is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() - self._heard_at >= SILENCE_SECONDS:
            if self._is_asked:
                self._give_up("it does not answer")
                return
            self._is_asked = True
            self._write(self._writer, _command(b"PING"))
        self._watch = loop.call_later(SILENCE_SECONDS, self._check)

    # What arrives.

    def data_received(self, data: bytes) -> None:
        self._heard_at, self._is_asked = asyncio.get_running_loop().time(), False
        self._unread, at = self._unread + data, 0
        try:
            while at < len(self._unread) and (read := _read(self._unread, at)) is not None:
                reply, at = read
                if isinstance(reply, _Push):
                    self._take(reply)
                else:
                    self._answer(reply)
        except (ValueError, RecursionError) as error:
            self._give_up(f"it does not speak Redis' protocol: {error}")
        self._unread = self._unread[at:]
        if len(self._unread) > MOST_BYTES:
            self._give_up("its reply does not end")

    def _take(self, pushed: "_Push") -> None:
        match pushed:
            case [b"message", _, bytes() as notification]:
                self._hear(notification)
            case [b"subscribe", *_]:
                self.is_listening = True

    def _answer(self, reply: object) -> None:
        self._unanswered -= 1
        if isinstance(reply, _Refusal):
            self._fail(reply)
        else:
            self.is_down = False
        if self._settled is not None and not self._unanswered:
            self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up(str(exc or "it closed the connection"))

    def _give_up(self, why: str) -> None:
        if self._writer is None:
            return
        was_lost = self._unanswered > 0  # if not, the server merely closed an idle connection
        self._let_go()
        if was_lost:
            self._fail(why)
        if self._channel is not None and not self._is_closed:
            self._connect_soon()

    def _let_go(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.transport.abort()
        if self._watch is not None:
            self._watch.cancel()
        was_listening, self.is_listening = self.is_listening, False
        self._unanswered = 0
        self._settle()
        if was_listening and not self._is_closed:
            self._missed()

    def _fail(self, why: str) -> None:
        self._failed_at = time.monotonic()
        self._unsent.clear()
        self._settle()
        if not self.is_down:
            self.is_down = True
            logger.warning(
                "Broker unavailable; workers find calls in SQL, and clients find results there", extra={"error": why}
            )

    def _settle(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class _Push(list[Any]):
    """What a server sends without a command."""


class _Refusal(str):
    """The error reply to a command."""

    __slots__ = ()


def _read(data: bytes, at: int) -> tuple[Any, int] | None:
    """Parse the RESP3 value at `at`; returns it and where the next one begins, or None while it is incomplete.

    Raises:
        ValueError: it is not RESP3.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        return None
    kind, said, at = data[at : at + 1], data[at + 1 : end], end + 2
    if kind in _LINES:
        return (_Refusal(said.decode(errors="replace")) if kind == b"-" else said), at
    count = int(said)
    if count < 0:
        if kind + said in _NULLS:
            return None, at
        raise ValueError(f"{count} is not a length")
    if kind in _TEXTS:
        return (data[at : at + count], at + count + 2) if len(data) >= at + count + 2 else None
    if kind not in _LISTS:
        raise ValueError(f"{kind!r} does not begin a reply")
    items = _Push() if kind == b">" else []
    for _ in range(count * _LISTS[kind]):
        item = _read(data, at)
        if item is None:
            return None
        items.append(item[0])
        at = item[1]
    return items, at


_LINES = frozenset((b"+", b"-", b":", b"_", b"#", b",", b"("))
_TEXTS = frozenset((b"$", b"!", b"="))
_NULLS = frozenset((b"$-1", b"*-1"))
_LISTS = {b"*": 1, b">": 1, b"~": 1, b"%": 2}
