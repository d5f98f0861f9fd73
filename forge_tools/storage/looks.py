"""What a worker asks and is told once a heartbeat, and which due rows it may claim: one statement each, on both databases."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from forge_tools.errors import StorageError
from forge_tools.records import Scope, Wakeup

OVERLAP = timedelta(seconds=30)
"""By how much an end may come to light after a later one: the longest that a transaction of ours takes to commit."""

EVER = datetime.min.replace(tzinfo=UTC) + OVERLAP
"""The end behind which everything is looked at; no end is taken for an earlier one, whoever wrote that."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Up to where all of the history is sealed: an end, and an event. What others sealed since only takes it further."""

    end: datetime
    event: int


@dataclass(frozen=True, slots=True)
class Question:
    """Who looks, whether it could take due rows now, and which tool keys have left its lane for good.

    With `sealed` it asks too whether anything behind that waits for its seal. `dropped` and `answering`, how many bodies its
    lane could run at once, are for others to read in its row.
    """

    scope: Scope
    _: KW_ONLY
    asks_due: bool = True
    banned: tuple[str, ...] = ()
    sealed: Reach | None = None
    dropped: int = 0
    answering: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What the database showed at one moment, to the boot whose beat it took with it."""

    now: float
    """The database's clock, in Unix seconds."""
    cancels: tuple[Wakeup, ...]
    """The boot's own running executions whose cancel was asked."""
    beats: Mapping[str, int]
    """The beat of every boot that has not stopped."""
    is_due: bool
    """Whether there is a row that the scope could claim; False if that was not asked."""
    is_over: bool
    """Whether an execution waits for what will not come: it expired, its cancel was asked, or it has no attempt."""
    demoted: frozenset[tuple[str, str]]
    """(name, digest) of every demoted definition of a tool."""
    disabled: frozenset[str]
    """The names of the tools that are switched off."""
    is_misplaced: bool
    """Whether a call of a banned tool waits in the async lane."""
    pinned: frozenset[tuple[str, str]] = frozenset()
    """(name, digest) of the definition that a tool is pinned to."""
    has_overdue_keys: bool = False
    """Whether an idempotency key may no longer hold."""
    is_unsealed: bool = False
    """Whether anything waits for its seal; False if that was not asked."""


_NOTHING = Reach(EVER, 0)


def scope_values(scope: Scope) -> dict[str, Any]:
    """Who asks, as parameters."""
    return {
        "boot": scope.boot,
        "hostname": scope.hostname,
        "pid": scope.pid,
        "lane": scope.lane,
        "queues": scope.queues,
        "keys": scope.tool_keys,
    }


def question_values(question: Question) -> dict[str, Any]:
    """What a look asks, as parameters."""
    sealed = question.sealed or _NOTHING
    return scope_values(question.scope) | {
        "asks_due": question.asks_due,
        "banned": question.banned,
        "dropped": question.dropped,
        "answering": question.answering,
        "asks_unsealed": question.sealed is not None,
        "sealed_end": sealed.end,
        "sealed_event": sealed.event,
    }


def look_of(question: Question, rows: Sequence[Sequence[Any]]) -> Look | StorageError:
    """Read what a look returned: lists are JSON texts, None where they are empty."""
    if (
        not rows
    ):  # no beat was taken, so the boot must not count as acknowledged: whatever it runs is taken for ownerless
        return StorageError(
            f"Worker {question.scope.boot} has no row in the table `workers` any more, so it starts no call. Restart it."
        )
    now, cancels, beats, is_due, is_over, demoted, disabled, is_misplaced, pinned, has_overdue_keys, is_unsealed = rows[
        0
    ]
    return Look(
        now,
        cancels=tuple(Wakeup(id_, attempt) for id_, attempt in json.loads(cancels or "[]")),
        beats=json.loads(beats or "{}"),
        is_due=bool(is_due),
        is_over=bool(is_over),
        demoted=frozenset((name, digest) for name, digest in json.loads(demoted or "[]")),
        disabled=frozenset(json.loads(disabled or "[]")),
        is_misplaced=bool(is_misplaced),
        pinned=frozenset((name, digest) for name, digest in json.loads(pinned or "[]")),
        has_overdue_keys=bool(has_overdue_keys),
        is_unsealed=bool(is_unsealed),
    )
