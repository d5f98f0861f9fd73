"""Garbage that a broker queue may hold, and how to put it there bypassing every client."""

import base64
import json
import random
from collections.abc import Sequence
from typing import Any

from amqp import Message
from redis import Redis

from forge_tools.broker.message import BULK, TASK, list_name
from forge_tools.model import new_id
from tests.rabbit import RabbitServer

NO_WAKEUPS: tuple[Any, ...] = (
    [],
    [None],
    ["not a list"],
    [[["not an id", 0]]],
    [[["00000000-0000-0000-0000-000000000000", -1]]],
    [[["00000000-0000-7000-8000-000000000000", 2**63]]],
    [[[1, 2, 3]], {"more": "than asked"}],
    [{"id": "an object"}],
)
"""Arguments of our task from which it would get nothing to run."""

HEADERS = {"task": "celery.map", "id": "x", "eta": "never", "expires": [], "timelimit": "no", "retries": {}}
PROPERTIES = (
    b"\x80\x00\x02\xff\xfe",  # a content type that is not UTF-8
    b"\x04\x00\x02\xff\xfe",  # a correlation id of the same kind
    b"\x00\x40" + b"\xff" * 8,  # a time that no calendar has
    b"\x20\x00\x00\x00\x00\x0b\x01tT" + b"\xff" * 8,  # the same in a header
    b"\x20\x00\x00\x00\x00\x09\x01xS\x00\x00\x00\x02\xff\xfe",  # a header that is not UTF-8
)


class RawMessage(Message):
    """A message whose properties are whatever bytes RabbitMQ lets through."""

    raw = b"\0\0"

    def _serialize_properties(self) -> bytes:
        return self.raw


def into_lists(server: "Redis[Any]", queue: str, messages: Sequence[bytes]) -> int:
    """Write raw messages into the lists in which kombu keeps a queue; returns how many are not one of ours."""
    for priority in (0, BULK):
        server.lpush(f"forge:{list_name(queue, priority)}", *messages)
    return 2 * len(messages)


def into_rabbit(server: RabbitServer, queue: str, messages: Sequence[bytes]) -> int:
    """Send bodies without properties, with those of Celery, and with properties that are as bad; returns how many are not one of ours."""
    sent = [Message(message) for message in messages]
    sent += [Message(message, content_type="application/json", application_headers=HEADERS) for message in messages]
    sent += [_raw(properties) for properties in PROPERTIES]
    sent += [Message(wakeups(1), application_headers=HEADERS | {"compression": "bzip2"}, priority=255)]
    with server.connect() as connection, connection.channel() as channel:
        channel.confirm_select()
        for message in sent:
            channel.basic_publish(message, routing_key=queue)
    return len(sent) - 1


def bad_messages(chance: random.Random) -> list[bytes]:
    """The shapes that ended workers, calls of Celery's own tasks, valid messages cut short, and noise."""
    valid = entry(wakeups(1))
    celerys = json.dumps([["celery.backend_cleanup", [[]]], {}, {"callbacks": [{"task": "celery.map"}]}]).encode()
    no_wakeups = [json.dumps([arguments, {}, {}]).encode() for arguments in NO_WAKEUPS]
    return [
        *(b"garbage", b"\xff\xfe\x00", b"", b"[]", b"{}", b"7", b"null", b'"text"', b"[" * 50_000, b"1" * 10_000),
        *(entry(b"", body="no base64!"), entry(b"", body=7), entry(b"", body=None), entry(b"\xff"), entry(b"[[7]]")),
        *(entry(b"[]", properties=[]), entry(b"[]", headers=None), entry(celerys), celerys),
        *(entry(wakeups(0)), entry(wakeups(129)), entry(wakeups(20_000)), wakeups(0), wakeups(20_000)),
        *no_wakeups,
        *map(entry, no_wakeups),
        *(valid[: chance.randrange(1, len(valid) - 1)] for _ in range(20)),
        *map(bytes, (chance.randbytes(chance.randrange(1, 200)) for _ in range(40))),
    ]


def changed_messages(chance: random.Random) -> list[bytes]:
    """A valid message of which chance has changed a few bytes; it may be valid still."""
    messages = [bytearray(entry(wakeups(1))) for _ in range(60)]
    for message in messages:
        for _ in range(3):
            message[chance.randrange(len(message))] = chance.randrange(256)
    return list(map(bytes, messages))


def wakeups(count: int) -> bytes:
    """A body as Celery writes it, which wakes nobody."""
    return json.dumps([[[[new_id(), 0] for _ in range(count)]], {}, {}]).encode()


def entry(content: bytes, /, **changed: Any) -> bytes:
    """A message as kombu writes it into a list."""
    properties = {"delivery_tag": new_id(), "delivery_info": {}, "body_encoding": "base64"}
    fields = {"headers": {"task": TASK, "id": "x"}, "properties": properties, "content-type": "application/json"}
    envelope = fields | {"content-encoding": "utf-8", "body": base64.b64encode(content).decode()}
    return json.dumps(envelope | changed).encode()


def _raw(properties: bytes) -> RawMessage:
    message = RawMessage(b"no wakeups")
    message.raw = properties
    return message
