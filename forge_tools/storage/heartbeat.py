"""What a worker says and asks once a heartbeat, and which due rows it may claim: one statement each, on both databases."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from forge_tools.errors import StorageError
from forge_tools.model import Scope, Wakeup

OVERLAP = timedelta(seconds=30)
"""By how much an end may come to light after a later one: the longest that a transaction of ours takes to commit."""

EVER = datetime.min.replace(tzinfo=UTC) + OVERLAP
"""The end behind which everything is looked at; no end is taken for an earlier one, whoever wrote that."""

T_co = TypeVar("T_co", covariant=True)
Pairs = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reach:
    """Up to where all of the history is in the audit chain: an end, and an event. What others appended since only takes it further."""

    end: datetime
    event: int


@dataclass(frozen=True, slots=True)
class Question(Generic[T_co]):
    """What the database is asked with a heartbeat, by the name under which the statement answers it; `read` makes a value of that.

    `parameters` are what the statement has to know for it.
    """

    name: str
    read: Callable[[Any], T_co] = field(repr=False)
    parameters: Mapping[str, Any] = field(default_factory=dict)


def _pairs(found: Sequence[Sequence[str]] | None) -> Pairs:
    return frozenset((name, digest) for name, digest in found or ())


def _names(found: Sequence[str] | None) -> frozenset[str]:
    return frozenset(found or ())


def _beats(found: Mapping[str, int] | None) -> Mapping[str, int]:
    return found or {}


def _wakeups(found: Sequence[tuple[str, int]] | None) -> tuple[Wakeup, ...]:
    return tuple(Wakeup(id_, attempt) for id_, attempt in found or ())


NOW = Question("now", float)
"""The database's clock, in Unix seconds."""
BEATS = Question("beats", _beats)
"""The beat of every worker instance that has not stopped."""
CANCELS = Question("cancels", _wakeups)
"""The asker's own running executions whose cancel was asked."""
OVER = Question("over", bool)
"""Whether an execution waits for what will not come: it expired, its cancel was asked, or it has no attempt."""
DEMOTED = Question("demoted", _pairs)
"""(name, digest) of every demoted definition of a tool."""
DISABLED = Question("disabled", _names)
"""The names of the tools that are switched off."""
PINNED = Question("pinned", _pairs)
"""(name, digest) of the definition that a tool is pinned to."""
SPENT_KEYS = Question("spent_keys", bool)
"""Whether an idempotency key may no longer hold."""
DUE = Question("due", bool, {"asks_due": True})
"""Whether there is a row that the scope could claim."""


def misplaced(tool_keys: Sequence[str]) -> Question[bool]:
    """Whether a call of one of these tools, which left it for good, waits in the async lane."""
    return Question("misplaced", bool, {"banned": tuple(tool_keys)})


def unchained(behind: Reach) -> Question[bool]:
    """Whether anything behind that waits to be appended to the audit chain."""
    return Question(
        "unchained", bool, {"asks_unchained": True, "chained_end": behind.end, "chained_event": behind.event}
    )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """That a worker instance lives, and what it asks. `dropped` messages and `answering`, how many bodies its lane could run at once, are
    for others to read in its row.
    """

    scope: Scope
    questions: tuple[Question[Any], ...] = ()
    _: KW_ONLY
    dropped: int = 0
    answering: int | None = None


class Answers:
    """What the database showed at one moment, to the worker instance whose heartbeat it took with it: by question, and only what was asked."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = found

    def __getitem__(self, question: Question[T_co]) -> T_co:
        return question.read(self._found[question.name])


_UNASKED = {"asks_due": False, "banned": (), "asks_unchained": False, "chained_end": EVER, "chained_event": 0}


def scope_values(scope: Scope) -> dict[str, Any]:
    """Who asks, as parameters."""
    return {
        "instance": scope.instance,
        "hostname": scope.hostname,
        "pid": scope.pid,
        "lane": scope.lane,
        "queues": scope.queues,
        "keys": scope.tool_keys,
    }


def heartbeat_values(heartbeat: Heartbeat) -> dict[str, Any]:
    """A heartbeat, as parameters."""
    values = scope_values(heartbeat.scope) | _UNASKED
    for question in heartbeat.questions:
        values |= question.parameters
    return values | {"dropped": heartbeat.dropped, "answering": heartbeat.answering}


def answers_of(heartbeat: Heartbeat, rows: Sequence[Sequence[Any]]) -> Answers | StorageError:
    """Read what a heartbeat returned: one JSON object, with an answer to each question under its name."""
    if (
        not rows
    ):  # no beat was taken, so the worker must not count as acknowledged: whatever it runs is taken for ownerless
        return StorageError(
            f"Worker {heartbeat.scope.instance} no longer has a row in the table `workers`, so it starts no calls. Restart it."
        )
    found = json.loads(rows[0][0])
    return Answers({question.name: found[question.name] for question in heartbeat.questions})
