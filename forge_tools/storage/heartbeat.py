"""What a worker reports and asks in a heartbeat, and which due rows it may claim: one statement each per database."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from forge_tools.errors import StorageError
from forge_tools.model.execution import Scope, Wakeup

OVERLAP = timedelta(seconds=30)
"""How late an end may become visible after a later one: the longest that one of our transactions takes to commit."""

EVER = datetime.min.replace(tzinfo=UTC) + OVERLAP
"""The earliest end that counts; one before it, whoever wrote it, counts as this one."""

T_co = TypeVar("T_co", covariant=True)
ToolVersions = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the audit chain has all of history: up to an end and an event. Batches appended since only extend it."""

    end: datetime
    event: int


@dataclass(frozen=True, slots=True)
class Question(Generic[T_co]):
    """A question to the database in a heartbeat, under the name of its answer there; `read` converts the answer.

    `parameters` are the values that the statement needs for it.
    """

    name: str
    read: Callable[[Any], T_co] = field(repr=False)
    parameters: Mapping[str, Any] = field(default_factory=dict)


def _pairs(found: Sequence[Sequence[str]]) -> ToolVersions:
    return frozenset((name, digest) for name, digest in found)


def _wakeups(found: Sequence[tuple[str, int]]) -> tuple[Wakeup, ...]:
    return tuple(Wakeup(id_, attempt) for id_, attempt in found)


NOW = Question("now", float)
"""The database's clock, in Unix seconds."""
BEATS = Question("beats", dict[str, int])
"""The beat of every worker instance that has not stopped."""
CANCELS = Question("cancels", _wakeups)
"""The asker's own running executions for which a cancel was requested."""
OVER = Question("over", bool)
"""Whether an execution waits in vain: it expired, or its cancel was requested."""
DEMOTED = Question("demoted", _pairs)
"""(name, digest) of every demoted definition of a tool."""
DISABLED = Question("disabled", frozenset[str])
"""The names of the disabled tools."""
PINNED = Question("pinned", _pairs)
"""(name, digest) of each definition that a tool is pinned to."""
DUE = Question("due", bool, {"asks_due": True})
"""Whether there is a row that the scope could claim."""


def misplaced(tool_keys: Sequence[str]) -> Question[bool]:
    """Ask whether a call of one of these tools, which left the async lane permanently, waits there."""
    return Question("misplaced", bool, {"banned": tuple(tool_keys)})


def unchained(behind: Reach) -> Question[bool]:
    """Ask whether anything after that waits to be appended to the audit chain."""
    return Question(
        "unchained", bool, {"asks_unchained": True, "chained_end": behind.end, "chained_event": behind.event}
    )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign that a worker instance lives, and its questions. Its row shows others `dropped`, a count of messages, and
    `answering`, how many bodies its lane could run at once.
    """

    scope: Scope
    questions: tuple[Question[Any], ...] = ()
    _: KW_ONLY
    dropped: int = 0
    answering: int | None = None


class Answers:
    """What the database showed when it accepted a worker instance's heartbeat: by question, only what was asked."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = found

    def __getitem__(self, question: Question[T_co]) -> T_co:
        return question.read(self._found[question.name])


_UNASKED = {"asks_due": False, "banned": (), "asks_unchained": False, "chained_end": EVER, "chained_event": 0}


def scope_values(scope: Scope) -> dict[str, Any]:
    return {
        "instance": scope.instance,
        "hostname": scope.hostname,
        "pid": scope.pid,
        "lane": scope.lane,
        "queues": scope.queues,
        "keys": scope.tool_keys,
    }


def heartbeat_values(heartbeat: Heartbeat) -> dict[str, Any]:
    values = scope_values(heartbeat.scope) | _UNASKED
    for question in heartbeat.questions:
        values |= question.parameters
    return values | {"dropped": heartbeat.dropped, "answering": heartbeat.answering}


def answers_of(heartbeat: Heartbeat, rows: Sequence[Sequence[Any]]) -> Answers | StorageError:
    """Read what a heartbeat returned: one JSON object, with the answer to each question under its name."""
    # Without a row no beat was accepted, so the worker must not count as acknowledged: its executions look ownerless.
    if not rows:
        return StorageError(
            f"Worker {heartbeat.scope.instance} no longer has a row in the table `workers`, so it starts no calls. Restart it."
        )
    found = json.loads(rows[0][0])
    return Answers({question.name: found[question.name] for question in heartbeat.questions})
