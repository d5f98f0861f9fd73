"""What a worker accepts from the broker: wakeups, which are the bodies of its messages; everything else is dropped."""

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from queue import Empty
from typing import Any

from amqp import Message
from amqp.method_framing import frame_handler
from kombu import Connection
from kombu.transport import pyamqp, redis, virtual
from redis.exceptions import ResponseError

from forge_tools.broker.message import TASK, MalformedMessageError, envelope, list_name, read_body, read_envelope
from forge_tools.errors import ConfigurationError
from forge_tools.model.execution import Wakeup

HEADERS = {"task": TASK}
"""All that Celery needs to find the task whose message this is."""

HEADER_FRAME = 2
HEADER_BYTES = 12
"""Class, weight and size of the body; the properties follow."""
NO_PROPERTIES = b"\0\0"
"""None of their flags set."""

_TAGS = count(1)

logger = logging.getLogger(__name__)


class Reception:
    """Reads messages, and counts those that it drops."""

    def __init__(self) -> None:
        self.dropped = 0

    def read(self, read: Callable[[bytes], list[Wakeup]], message: bytes, queue: str) -> list[Wakeup] | None:
        """Return what `read` finds in a message; None if it is to be dropped."""
        try:
            return read(message)
        except MalformedMessageError as error:
            self.drop(queue, str(error))
            return None

    def drop(self, queue: str, why: str) -> None:
        """Count a message, and log only the first: whoever writes one can write millions."""
        self.dropped += 1
        if self.dropped == 1:
            logger.warning(
                "A message from the broker is not one of ours and is dropped; later ones are dropped silently",
                extra={"queue": queue, "why": why},
            )


class ReceivingConnection(Connection):
    """Celery's connection to the broker, on transports that accept only our messages.

    They find the `reception` among the transport options.
    """

    def get_transport_cls(self) -> Any:
        found = super().get_transport_cls()
        if found not in _TRANSPORTS:
            raise ConfigurationError(
                f"FORGE_BROKER_URL: workers support Redis, Valkey and RabbitMQ, not {found.__module__}. Use one of those."
            )
        return _TRANSPORTS[found]


class _RedisMessage(virtual.Message):
    body: Any
    delivery_info: Any

    def serializable(self) -> dict[str, Any]:
        """Return what is put back into the list if the worker ends before it takes the message."""
        return envelope(self.body, self.delivery_info["routing_key"], self.delivery_info["priority"])


class _RedisChannel(redis.Channel):  # celery-types declares only part of it: hence the declarations
    Message = _RedisMessage
    from_transport_options = (*redis.Channel.from_transport_options, "reception")
    reception: Reception
    connection_errors: Any
    _in_poll: Any
    _queue_cycle: Any
    _flush_brpop_reauth: Any

    def close(self) -> None:
        """Do the same as kombu's, but do not wait for up to a second for a message that may be on its way.

        What the server takes from the lists before it sees the end of this side arrives, unless it does both in one
        turn: then a message is lost, and its calls are found in SQL.
        """
        if waiting := self._in_poll and self._in_poll._sock:  # noqa: SLF001  redis-py has no public name for it
            with suppress(Empty, OSError, *self.connection_errors):
                with suppress(OSError):
                    socket.socket.shutdown(waiting, socket.SHUT_WR)
                self._brpop_read()
        super().close()

    def _new_queue(self, queue: str, *arguments: Any, **options: Any) -> None:
        """Create a queue even if somebody put something else in its place: kombu asks for its length next."""
        super()._new_queue(queue, *arguments, **options)
        self._drop_what_is_no_list(queue)

    def _queue_bind(self, *arguments: Any) -> None:
        """Do nothing: messages are written to their queue, without binding tables, which anybody could spoil."""

    def _brpop_read(self, **options: Any) -> bool:
        """Do the same as kombu's, but ignore what is not a message of ours, and pass on only the ids of one."""
        try:
            name, text = self._popped(options)
            queue, _, priority = name.decode().partition(self.sep)
            wakeups = self.reception.read(read_envelope, text, queue)
            if wakeups is None:
                raise Empty
            self._queue_cycle.rotate(queue)
            delivery = {"exchange": "", "routing_key": queue, "priority": int(priority or 0)}
            properties = {"delivery_tag": next(_TAGS), "delivery_info": delivery}
            message = {"body": wakeups, "headers": HEADERS, "properties": properties}
            self.connection._deliver(message, queue)  # noqa: SLF001  kombu's channels do so
            return True
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()

    def _popped(self, options: dict[str, Any]) -> tuple[bytes, bytes]:
        try:
            answer = self.client.parse_response(self.client.connection, "BRPOP", **options)
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            for queue in self.active_queues:
                self._drop_what_is_no_list(queue)
            answer = None
        if not answer:
            raise Empty
        name, text = answer
        return name, text

    def _drop_what_is_no_list(self, queue: str) -> None:
        """Drop what occupies the place of a queue: clients could not write to it, nor could we read another."""
        with self.conn_or_acquire() as client:
            for name in (list_name(queue, priority) for priority in self.priority_steps):
                try:
                    client.llen(name)
                except ResponseError:
                    client.delete(name)
                    self.reception.drop(queue, "its key is not a list")


class _RedisTransport(redis.Transport):
    Channel = _RedisChannel


def _without_properties(connection: Any, callback: Any) -> Callable[[tuple[int, int, bytes]], Any]:
    """Read frames as py-amqp does, without messages' properties, in which RabbitMQ accepts what py-amqp cannot read:
    texts that are not UTF-8, and times outside any calendar.
    """
    on_frame = frame_handler(connection, callback)

    def on_trimmed(frame: tuple[int, int, bytes]) -> Any:
        kind, channel, content = frame
        if kind == HEADER_FRAME:
            content = bytes(content[:HEADER_BYTES]) + NO_PROPERTIES
        return on_frame((kind, channel, content))

    return on_trimmed


class _RabbitChannel(pyamqp.Channel):
    def basic_consume(self, queue: str = "", *arguments: Any, **options: Any) -> Any:
        options["callback"] = partial(self._receive, queue, options["callback"])
        return super().basic_consume(queue, *arguments, **options)

    def _receive(self, queue: str, callback: Callable[[Message], None], received: Any) -> None:
        wakeups = self.connection.reception.read(read_body, received.body, queue)
        if wakeups is None:
            self.basic_ack(received.delivery_tag)
            return
        message = Message(wakeups, channel=self, application_headers=HEADERS)
        # Not the key that its sender chose: ids without a slot are sent on to the queue of that name.
        message.delivery_info = {**received.delivery_info, "routing_key": queue}
        callback(message)


class _RabbitConnection(pyamqp.Connection):
    Channel = _RabbitChannel

    def __init__(self, *, reception: Reception, **options: Any) -> None:
        super().__init__(frame_handler=_without_properties, **options)
        self.reception = reception


class _RabbitTransport(pyamqp.Transport):
    Connection = _RabbitConnection


class _SecureRabbitTransport(pyamqp.SSLTransport):
    Connection = _RabbitConnection


_TRANSPORTS = {
    redis.Transport: _RedisTransport,
    pyamqp.Transport: _RabbitTransport,
    pyamqp.SSLTransport: _SecureRabbitTransport,
}
