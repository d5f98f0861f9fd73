"""The message as Celery and kombu write it, and all that is ever read from one: pairs of execution id and attempt."""

import base64
import json
import os
import socket
import uuid
from collections.abc import Sequence
from typing import Any

from forge_tools.dispatch.app import TASK
from forge_tools.dispatch.bells import RINGS_PER_MESSAGE, Limits
from forge_tools.records import Ring, is_id

MAX_BYTES = 65_536
"""Several times what the longest message takes; what is longer is not even parsed."""

_MAX_ATTEMPT = 2**31 - 1
_MAX_RINGS = max(RINGS_PER_MESSAGE.values())


class MalformedMessageError(ValueError):
    """These bytes are no message of ours."""


def arguments(rings: Sequence[Ring]) -> list[Any]:
    """What the task gets."""
    return [[[ring.id, ring.attempt] for ring in rings]]


def body(rings: Sequence[Ring]) -> bytes:
    """The body by Celery's message protocol 2."""
    embedded = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return json.dumps([arguments(rings), {}, embedded]).encode()


def headers(task_id: str, limits: Limits | None) -> dict[str, Any]:
    """The headers by the same protocol."""
    return {
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
        "origin": f"{os.getpid()}@{socket.gethostname()}",
    }


def envelope(rings: Sequence[Ring], queue: str, priority: int, limits: Limits | None = None) -> str:
    """The text that kombu keeps in a list of Redis for a message in that broker queue."""
    task_id = str(uuid.uuid4())
    return json.dumps(
        {
            "body": base64.b64encode(body(rings)).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers(task_id, limits),
            "properties": {
                "correlation_id": task_id,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": priority,
                "body_encoding": "base64",
                "delivery_tag": str(uuid.uuid4()),
            },
        }
    )


def read_envelope(text: bytes) -> list[Ring]:
    """The rings of a message that was kept in a list.

    Raises:
        MalformedMessageError: there are none to be had.
    """
    return read_body(_parsed(text, lambda fields: base64.b64decode(fields["body"], validate=True)))


def read_body(text: bytes) -> list[Ring]:
    """The rings of a message that has this body. One that holds anything else wakes nobody.

    Raises:
        MalformedMessageError: there are none to be had.
    """
    pairs = _parsed(text, lambda fields: fields[0][0])
    if not isinstance(pairs, list) or not 0 < len(pairs) <= _MAX_RINGS or not all(map(_is_ring, pairs)):
        raise MalformedMessageError(f"it holds no pairs of id and attempt, or more than {_MAX_RINGS}")
    return [Ring(*pair) for pair in pairs]


def _parsed(text: bytes, part: Any) -> Any:
    if len(text) > MAX_BYTES:
        raise MalformedMessageError(f"it is longer than {MAX_BYTES:,} bytes")
    try:
        return part(json.loads(text))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise MalformedMessageError("it is not built like one") from error


def _is_ring(pair: object) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and is_id(pair[0])
        and type(pair[1]) is int
        and 0 <= pair[1] <= _MAX_ATTEMPT
    )
