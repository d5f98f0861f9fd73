"""Executions as read back: filters, records, attempts, events, and the stream of one that is followed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from forge_tools.model.calls import ToolResult
from forge_tools.model.execution import TERMINAL, Asked, ExecutionStatus
from forge_tools.model.scope import Output, Progress

_CURSOR = re.compile(r"(\d{1,9})\.(\d{1,18})\.(\d{1,18})", re.ASCII)  # numbers that INTEGER and BIGINT can hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which executions to select; None means any. `since` (inclusive) and `until` (exclusive) bound the time of queueing.

    `error_text` is a part of the error, compared without regard to ASCII case; `min_ms` and `max_ms` bound the duration
    of the body.
    """

    tool: str | None = None
    category: str | None = None
    status: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    queue: str | None = None
    error_code: str | None = None
    error_text: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    min_ms: float | None = None
    max_ms: float | None = None

    @classmethod
    def of(cls, filters: Mapping[str, Any]) -> "Selection":
        """Select by what a caller gave as keywords.

        Raises:
            TypeError: for an unknown filter, naming the known ones.
            ValueError: as the constructor.
        """
        known = [one.name for one in fields(cls)]
        for name in filters:
            if name not in known:
                raise TypeError(f"There is no filter {name!r}. There are: {', '.join(known)}.")
        return cls(**filters)

    def __post_init__(self) -> None:
        """Reject values that would select nothing, or different rows on the two databases.

        Raises:
            ValueError: for an unknown status, or a time without a zone.
        """
        if self.status is not None and self.status not in list(ExecutionStatus):
            raise ValueError(f"There is no status {self.status!r}. There are: {', '.join(ExecutionStatus)}.")
        for name, moment in (("since", self.since), ("until", self.until)):
            if moment is not None and (not isinstance(moment, datetime) or moment.utcoffset() is None):
                raise ValueError(
                    f"{name} is {moment}, without a time zone. Give a datetime that has one: datetime.now(UTC)."
                )


class Grouping(StrEnum):
    """What figures are grouped by."""

    TOOL = "tool"
    CATEGORY = "category"
    AGENT = "agent"
    SESSION = "session"
    QUEUE = "queue"
    HOUR = "hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One body start, or (with `started_at` None) the end of an execution that never started one."""

    attempt: int
    status: ExecutionStatus
    worker_id: str | None
    hostname: str | None
    pid: int | None
    started_at: datetime | None
    completed_at: datetime
    duration_ms: float | None
    error: str | None
    error_code: str | None
    diagnosis: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that was done to an execution, with who did it and why."""

    at: datetime
    kind: str
    actor: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord(Attempt):
    """An attempt of any execution, with the call; `final` if it ended the execution."""

    execution_id: str
    tool: str
    category: str
    agent_id: str | None
    session_id: str | None
    queue: str
    final: bool
    output: Any
    error_details: Any
    metadata: dict[str, Any]

    @property
    def cursor(self) -> str:
        """The value of `before` that continues after it."""
        return f"{self.execution_id}:{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord(Event):
    """An event of any execution, with the call; the event of a `prune` run belongs to no execution."""

    id: int
    execution_id: str
    tool: str | None
    category: str | None
    agent_id: str | None
    session_id: str | None

    @property
    def cursor(self) -> str:
        """The value of `before` that continues after it."""
        return str(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord(Asked):
    """One row of the view `tool_executions`: the call, its state and its result."""

    status: ExecutionStatus
    parameters: dict[str, Any]
    context: dict[str, Any]
    attempt: int
    queued_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    duration_ms: float | None
    worker_id: str | None
    hostname: str | None
    output: Any
    error: str | None
    error_code: str | None
    error_details: Any
    metadata: dict[str, Any]
    diagnosis: dict[str, Any] | None = None
    idempotency_key: str | None = None
    replay_of: str | None = None

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL

    @property
    def queue_wait_ms(self) -> float | None:
        """How long it waited before its last body started; None if none did."""
        if self.started_at is None:
            return None
        return round((self.started_at - self.queued_at).total_seconds() * 1000, 3)

    @property
    def cursor(self) -> str:
        """The value of `before` that continues after it."""
        return self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """The current state of an execution; `attempt` counts the body starts so far.

    If it was queued again after an attempt, `reason` says how that attempt ended, and `due_at` when the next may begin.
    """

    status: ExecutionStatus
    attempt: int = 0
    hostname: str | None = None
    reason: str | None = None
    due_at: datetime | None = None
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something done to the execution from outside, such as a request to cancel it."""

    event: Event
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The final event: how the execution ended, and its result."""

    status: ExecutionStatus
    result: ToolResult
    attempt: int = 0
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """How far an execution has been followed: the last report seen, of which attempt, and the last note."""

    execution_id: str
    attempt: int = 0
    number: int = 0
    note: int = 0

    @classmethod
    def of(cls, execution_id: str, cursor: str | None) -> "Position":
        """Read a cursor; None means the beginning.

        Raises:
            ValueError: it is not a cursor.
        """
        if cursor is None:
            return cls(execution_id)
        found = _CURSOR.fullmatch(cursor)
        if found is None:
            raise ValueError(f"{cursor[:60]!r} is not a cursor; pass that of an event: events(after=event.cursor).")
        return cls(execution_id, *map(int, found.groups()))

    @property
    def cursor(self) -> str:
        return f"{self.attempt}.{self.number}.{self.note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """What follows a position, in order, and the state of the execution (None: there is no such execution).

    `has_more` means that more remains to be read.
    """

    state: StateChange | None
    heard: tuple[Note | Progress | Output, ...]
    position: Position
    has_more: bool = False


CallEvent = StateChange | Note | Progress | Output | Ended
"""Each has a `cursor`: `events(after=event.cursor)` continues after it, in any process."""
