"""What is read back: results, attempts, events, workers, figures."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from forge_tools.model.calls import ToolResult
from forge_tools.model.queue import TERMINAL, Asked, ExecutionStatus
from forge_tools.model.servers import ServerState
from forge_tools.model.tools import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """The final outcome of an execution, read back."""

    id: str
    status: ExecutionStatus
    attempt: int
    result: ToolResult


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
    """Something that was done to an execution: by whom, and why."""

    at: datetime
    kind: str
    actor: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord(Attempt):
    """An attempt of any execution, with what was asked; `final` if its end is that of the execution."""

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
        """What `before` takes to go on behind it."""
        return f"{self.execution_id}:{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord(Event):
    """An event of any execution, with what was asked; that of a run of `prune` belongs to no execution."""

    id: int
    execution_id: str
    tool: str | None
    category: str | None
    agent_id: str | None
    session_id: str | None

    @property
    def cursor(self) -> str:
        """What `before` takes to go on behind it."""
        return str(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord(Asked):
    """One row of the view `tool_executions`: what was asked, where it is, what came of it."""

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
        """How long it waited before its last body started; None where none did."""
        if self.started_at is None:
            return None
        return round((self.started_at - self.queued_at).total_seconds() * 1000, 3)

    @property
    def cursor(self) -> str:
        """What `before` takes to go on behind it."""
        return self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """A distribution in milliseconds; None where nothing was measured. Percentiles are by nearest rank."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFigures:
    """What history says of a group of calls, such as those of a tool: `key`.

    `failed` counts every end but success, rejection and cancel. `duration_ms` is of bodies; `wait_ms` is from queued to started.
    """

    key: str | None
    calls: int
    succeeded: int
    failed: int
    rejected: int
    duration_ms: Times
    wait_ms: Times

    @property
    def success_rate(self) -> float | None:
        """Of the calls that succeeded or failed, the part that succeeded."""
        ended = self.succeeded + self.failed
        return self.succeeded / ended if ended else None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """What waits and runs in one lane of one queue. `oldest_seconds` is the age of the oldest that waits."""

    queue: str
    lane: str
    queued: int
    running: int
    oldest_seconds: float | None


class StuckReason(StrEnum):
    """Why calls do not move although they should."""

    OWNER_GONE = "owner_gone"
    OVERDUE = "overdue"
    NOT_TAKEN = "not_taken"
    NOT_HOSTED = "not_hosted"
    OTHER_VERSION = "other_version"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckCalls:
    """Calls of one kind that do not move. `seconds` is how long the worst of them has not; `example` is the id of one.

    `hostname` and `pid` are those of the worker, or its child, that runs them. Where workers host the tool in another version or
    definition, `wanted` is what the calls need and `hosted` what there is.
    """

    reason: StuckReason
    queue: str
    lane: str
    tool: str
    count: int
    seconds: float
    example: str
    hostname: str | None = None
    pid: int | None = None
    wanted: str | None = None
    hosted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """One instance of a worker process. `beat` only grows; `silent_seconds` is how long it has not, by the database's clock.

    One that leaves when what it runs has ended serves no `queues`. `unfit` says why it claims nothing, or left. `servers` are the
    MCP servers that it hosts. Of its `concurrency` places so many were `answering` at the last beat: a child that does not
    answer runs nothing.
    """

    id: str
    hostname: str
    pid: int
    lane: Lane
    queues: tuple[str, ...]
    concurrency: int
    version: str
    started_at: datetime | None = None
    last_seen_at: datetime | None = None
    stopped_at: datetime | None = None
    beat: int = 0
    dropped_messages: int = 0
    silent_seconds: float = 0.0
    unfit: str | None = None
    servers: tuple[ServerState, ...] = ()

    @property
    def serves(self) -> str:
        """Its queues, for people."""
        return ", ".join(self.queues) or "none: it leaves"

    answering: int | None = None

    @property
    def slots(self) -> int:
        """How many bodies it can run at once as things are."""
        return self.concurrency if self.answering is None else self.answering
