"""A stack at one moment, as an operator watches it."""

from dataclasses import dataclass
from datetime import datetime

from forge_tools.model.history import CallFigures, StuckCalls, WorkerRecord
from forge_tools.model.queue import ExecutionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """A worker, and how many calls it runs."""

    worker: WorkerRecord
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """One lane of a queue now: `waiting` are due, the first since `oldest_seconds`; `later` are not due yet, or want approval.

    `workers` counts the live ones that serve it; `slots` is what they have together, for other queues too, of which some are `free`.
    """

    queue: str
    lane: str
    waiting: int
    later: int
    running: int
    oldest_seconds: float | None
    workers: int
    slots: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCalls:
    """Calls of a tool that ended alike lately, and not well; `example` is the id of the one submitted last, `why` what it raised, and where."""

    tool: str
    status: ExecutionStatus
    error_code: str | None
    calls: int
    example: str
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemotedTool:
    """A tool, as live workers host it, that held the async lane and runs in the process lane since."""

    tool: str
    version: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Everything at `at`, by the database's clock. Figures are of calls that ended in the `window` seconds before it."""

    at: datetime
    window: float
    total: CallFigures | None
    tools: tuple[CallFigures, ...]
    failures: tuple[FailedCalls, ...]
    workers: tuple[WorkerLoad, ...]
    queues: tuple[QueueLoad, ...]
    stuck: tuple[StuckCalls, ...]
    demoted: tuple[DemotedTool, ...]

    @property
    def calls_per_second(self) -> float:
        return self.total.calls / self.window if self.total else 0.0
