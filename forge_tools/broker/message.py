"""The broker as clients and workers see it, and the message that wakes a worker for calls of a queue and lane.

The message is as Celery and kombu write it. `Allowance` bounds how many of its calls a client may put before the bulk of
others. Nobody waits for a broker: what it loses costs time, never a call.
"""

import base64
import json
import math
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from forge_tools.model.execution import Wakeup, is_id
from forge_tools.model.tools import Lane
from forge_tools.time_limits import CeleryLimits

CHANNEL_PREFIX = "forge:notifications:"

REPLY_MARK = b"\0"
"""Separates the id of an execution from its encrypted result. Without it, a notification is ids separated by spaces."""

CLOSE_SECONDS = 5.0
"""How long a closing broker may still send what is under way."""
PAUSE_SECONDS = 1.0
"""How long nothing is sent after a failure."""

Hear = Callable[[bytes], None]
"""Receives what arrives on a channel, to which anybody may write."""

TASK = "forge.run"
KEY_PREFIX = "forge:"
"""The prefix of all our keys on a broker that others use as well."""
BULK = 5
"""The priority of messages that let others go first; in Redis 0 is the highest, and each priority has its own list."""

MAX_BYTES = 65_536
"""Several times the longest message; anything longer is not even parsed."""

WAKEUPS_PER_MESSAGE: Mapping[Lane, int] = {"async": 128, "process": 16}
MESSAGES_PER_WORKER: Mapping[Lane, int] = {"async": 2, "process": 8}
"""Into how many messages a burst is cut for each worker that shares it, so that competing consumers get equal parts.

A worker of the process lane runs few calls at a time, and they are long: the rest of its message would wait for it.
"""
LEAST_SHARED: Mapping[Lane, int] = {"async": 8, "process": 1}
"""How many ids stay together anyway: messages cost more than spreading a handful of calls saves."""

PROMPT_CALLS = 32
"""How many calls a second of one client go before bulk; its other calls are bulk."""

_MAX_ATTEMPT = 2**31 - 1  # of an integer in PostgreSQL: a larger one would fail the claim of a whole batch
_MAX_WAKEUPS = max(WAKEUPS_PER_MESSAGE.values())


class MalformedMessageError(ValueError):
    """These bytes are not a message of ours."""


@dataclass(frozen=True, slots=True)
class Message:
    """What one worker takes at once. If it `is_bulk`, all other messages go first.

    The `limits` are the longest of its calls, for people who inspect the broker. A message can be forged, so workers
    use those of the row.
    """

    queue: str
    lane: Lane
    wakeups: tuple[Wakeup, ...]
    limits: CeleryLimits
    is_bulk: bool = False

    def parts(self, workers: Mapping[tuple[str, str], int] = MappingProxyType({})) -> "Iterator[Message]":
        """Split it into as few messages as its lane and the number of workers of each (queue, lane) allow.

        One worker takes a whole message, so several workers need several.
        """
        count, lane, sharing = len(self.wakeups), self.lane, workers.get((self.queue, self.lane), 1)
        size = WAKEUPS_PER_MESSAGE[lane]
        if sharing > 1:
            size = min(size, max(LEAST_SHARED[lane], math.ceil(count / (MESSAGES_PER_WORKER[lane] * sharing))))
        if count <= size:
            yield self
            return
        for start in range(0, count, size):
            yield replace(self, wakeups=self.wakeups[start : start + size])


class Broker(Protocol):
    """One persistent connection of an event loop. No method blocks the loop, and after `close` none does anything."""

    @property
    def is_down(self) -> bool:
        """Whether the last send failed."""

    @property
    def is_listening(self) -> bool:
        """Whether messages to the channel currently arrive here."""

    def publish(self, message: Message) -> None:
        """Put a message into its queue. While the broker is away, messages are dropped: workers find calls in SQL."""

    def notify(self, channel: str, notification: bytes) -> None:
        """Notify the listeners of that channel, which is the id of a client or of a worker instance."""

    def listen(self, channel: str, hear: Hear, missed: Callable[[], None] = lambda: None) -> None:
        """Receive what is sent to that channel, even after outages; `missed` is called when something may be lost."""

    async def close(self) -> None:
        """Send what is under way, within a bounded time."""


class Allowance:
    """What one client may put before other clients' bulk: so much at once, and as much again a second later.

    A client that waits for each call is never bulk, however long others' backlogs are, and no client has to declare
    itself. Nobody starves: workers also take the calls that have waited longest, whatever messages say.
    """

    def __init__(self, size: int = PROMPT_CALLS, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        self._left = float(size)
        self._counted_at = clock()

    def take(self, wanted: int) -> int:
        """Use up to `wanted` of it; returns how many."""
        now = self._clock()
        self._left = min(self._size, self._left + (now - self._counted_at) * self._size)
        self._counted_at = now
        granted = min(wanted, int(self._left))
        self._left -= granted
        return granted


def queue_name(queue: str, lane: Lane) -> str:
    """Return the broker queue that serves `queue` in that lane."""
    return f"forge.{queue}.{lane}"


def queue_of(name: str) -> str:
    """Return the queue whose broker queue has that name."""
    return name.removeprefix("forge.").rpartition(".")[0]  # the last dot: names of queues may contain dots


def list_name(queue: str, priority: int) -> str:
    """Return the list in which kombu's Redis transport keeps a broker queue's messages of that priority."""
    return f"{queue}\x06\x16{priority}" if priority else queue


def body(wakeups: Sequence[Wakeup]) -> str:
    """Encode the body in Celery's message protocol 2: the task gets the wakeups, as pairs."""
    embedded = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return json.dumps([[wakeups], {}, embedded])


def envelope(
    wakeups: Sequence[Wakeup], queue: str, priority: int, limits: CeleryLimits | None = None
) -> dict[str, Any]:
    """Return what kombu stores, as JSON, in a Redis list for a message in that broker queue, with headers."""
    task_id = str(uuid.uuid4())
    return {
        "body": base64.b64encode(body(wakeups).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": TASK,
            "id": task_id,
            "root_id": task_id,
            "parent_id": None,
            "group": None,
            "eta": None,
            "expires": None,
            "retries": 0,
            "timelimit": [None, None] if limits is None else [limits.hard, limits.soft],
            "origin": _ORIGIN,
        },
        "properties": {
            "correlation_id": task_id,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": priority,
            "body_encoding": "base64",
            "delivery_tag": task_id,
        },
    }


def read_envelope(text: bytes) -> list[Wakeup]:
    """Return the ids of a message stored in a list, as `read_body` reads them."""
    return _read(text, lambda kept: base64.b64decode(json.loads(kept)["body"], validate=True))


def read_body(text: bytes) -> list[Wakeup]:
    """Return the ids of a message with this body. One that holds anything else wakes nobody.

    Raises:
        MalformedMessageError: it has no valid ids.
    """
    return _read(text, lambda body: body)


def _read(text: bytes, body_of: Callable[[bytes], bytes]) -> list[Wakeup]:
    if len(text) > MAX_BYTES:
        raise MalformedMessageError(f"it is longer than {MAX_BYTES:,} bytes")
    try:
        pairs = json.loads(body_of(text))[0][0]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise MalformedMessageError("it is not structured like one") from error
    if not isinstance(pairs, list) or not 0 < len(pairs) <= _MAX_WAKEUPS or not all(map(_is_wakeup, pairs)):
        raise MalformedMessageError(f"it holds no pairs of id and attempt, or more than {_MAX_WAKEUPS}")
    return [Wakeup(*pair) for pair in pairs]


def _is_wakeup(pair: object) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and is_id(pair[0])
        and type(pair[1]) is int  # isinstance would let true and false pass
        and 0 <= pair[1] <= _MAX_ATTEMPT
    )


_ORIGIN = f"{os.getpid()}@{socket.gethostname()}"
"""Found once, at import, because nobody reads it: a forked child that publishes names its parent."""
