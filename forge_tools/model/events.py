"""What whoever follows an execution hears: where it is, what was done to it, what it reports, and its end."""

import re
from dataclasses import dataclass
from datetime import datetime

from forge_tools.model.calls import ToolResult
from forge_tools.model.history import Event
from forge_tools.model.queue import ExecutionStatus
from forge_tools.model.reports import Output, Progress

_CURSOR = re.compile(r"(\d{1,9})\.(\d{1,18})\.(\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """Where an execution is now: `attempt` counts the body starts so far.

    Queued again after an attempt, `reason` says how that one ended, and `due_at` when the next may begin.
    """

    status: ExecutionStatus
    attempt: int = 0
    hostname: str | None = None
    reason: str | None = None
    due_at: datetime | None = None
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something was done to it from outside, such as a request to cancel it."""

    event: Event
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last event of all: how it ended, and its result."""

    status: ExecutionStatus
    result: ToolResult
    attempt: int = 0
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """How far somebody has heard of an execution: up to that report of that attempt, and that note."""

    execution_id: str
    attempt: int = 0
    number: int = 0
    note: int = 0

    @classmethod
    def of(cls, execution_id: str, cursor: str | None) -> "Position":
        """Read a cursor; without one, the beginning.

        Raises:
            ValueError: it is none.
        """
        if cursor is None:
            return cls(execution_id)
        found = _CURSOR.fullmatch(cursor)
        if found is None:
            raise ValueError(f"{cursor[:60]!r} is no cursor; give that of an event: events(after=event.cursor).")
        return cls(execution_id, *map(int, found.groups()))

    @property
    def cursor(self) -> str:
        return f"{self.attempt}.{self.number}.{self.note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What there is to hear behind a position, in order, and where the execution is (None: there is no such).

    `has_more` says that not all of it was read at once.
    """

    state: StateChange | None
    heard: tuple[Note | Progress | Output, ...]
    position: Position
    has_more: bool = False


CallEvent = StateChange | Note | Progress | Output | Ended
"""Each has a `cursor`: `events(after=event.cursor)` goes on behind it, in whatever process."""
