"""Which executions are meant: the filters that history, figures and exports share."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from forge_tools.model.queue import ExecutionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is None does not matter. `since` and `until` bound when they were queued, the first included.

    `error_text` is part of the error, in any case of ASCII letters; `min_ms` and `max_ms` bound how long the body ran.
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

    def __post_init__(self) -> None:
        """Refuse what would select nothing, or something else, on one database or the other.

        Raises:
            ValueError: for a status there is not, and for a time without a zone.
        """
        if self.status is not None and self.status not in set(ExecutionStatus):
            raise ValueError(f"There is no status {self.status!r}. There are: {', '.join(ExecutionStatus)}.")
        for name, moment in (("since", self.since), ("until", self.until)):
            if moment is not None and moment.utcoffset() is None:
                raise ValueError(f"{name} is {moment.isoformat()}, in no time zone. Give it one: datetime.now(UTC).")


class Grouping(StrEnum):
    """What figures are told apart by."""

    TOOL = "tool"
    CATEGORY = "category"
    AGENT = "agent"
    SESSION = "session"
    QUEUE = "queue"
    HOUR = "hour"
