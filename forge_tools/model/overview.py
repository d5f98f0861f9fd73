"""A stack at one moment, for operators: figures, queues, stuck calls, workers and the MCP servers they host."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from forge_tools.model.execution import ExecutionStatus
from forge_tools.model.tools import Lane

MOST_SAID = 3


class ServerState(BaseModel):
    """One server as its worker last saw it, by that worker's clock.

    `prefix` begins the names of its tools; `tools` counts those offered, `left_out` says why others are not.
    `why` is the reason for a failure with the last output of its program, `failures` the number of failures in a row.
    """

    model_config = ConfigDict(frozen=True)

    server: str
    prefix: str
    status: Literal["starting", "serving", "failing"]
    since: datetime
    tools: int = 0
    why: str = ""
    failures: int = 0
    left_out: dict[str, str] = Field(default_factory=dict)
    hostname: str = ""

    @property
    def sentence(self) -> str:
        """The state as a sentence for people."""
        since = f"since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        if self.status == "serving":
            tools = "1 tool" if self.tools == 1 else f"{self.tools} tools"
            said = f"serves {tools} {since}"
        elif self.status == "starting":
            said = f"is starting {since}; try again soon"
        else:
            times = f" ({self.failures} times)" if self.failures > 1 else ""
            said = f"has been failing {since}{times}, and is retried: {self.why}"
        return f"The MCP server '{self.server}' on {self.hostname} {said}"


def told_of(tool: str, states: Iterable[ServerState]) -> str:
    """Describe the servers that an unknown tool may belong to, as text to append to a sentence; empty if none."""
    fitting = [one for one in states if tool.startswith(one.prefix)]
    longest = max((len(one.prefix) for one in fitting), default=0)
    said = (_of_tool(tool, one) for one in fitting if len(one.prefix) == longest)
    return "".join(f". {sentence}" for sentence in list(dict.fromkeys(said))[:MOST_SAID])


def _of_tool(tool: str, state: ServerState) -> str:
    reason = state.left_out.get(tool)
    return state.sentence if reason is None else f"{state.sentence}, without this one: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """A distribution in milliseconds; None if nothing was measured. Percentiles are by nearest rank."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFigures:
    """Figures from history for a group of calls; `key` names the group, such as a tool.

    `failed` counts every end but success, rejection and cancellation. `duration_ms` covers bodies; `wait_ms` is from
    queued to started.
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
        """The share that succeeded of the calls that succeeded or failed."""
        ended = self.succeeded + self.failed
        return self.succeeded / ended if ended else None


class StuckReason(StrEnum):
    """Why calls make no progress although they should."""

    OWNER_GONE = "owner_gone"
    OVERDUE = "overdue"
    NOT_TAKEN = "not_taken"
    NOT_HOSTED = "not_hosted"
    OTHER_VERSION = "other_version"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckCalls:
    """Stuck calls of one kind. `seconds` is how long the worst one has been stuck; `example` is the id of one.

    `hostname` and `pid` belong to the worker, or its child, that runs them. If workers host the tool in another version
    or definition, `wanted` is what the calls need and `hosted` what is available.
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


THE_TOOL = "the tool"
"""Who asks for walls where no setting does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWalls:
    """The tier of walls that a worker gives, and why not more.

    `withheld` are the tools and, as `queue:NAME`, the queues that it leaves to others because it cannot give their walls: each
    with the tier, and who asks for it. Calls in `queues` all run behind walls, and so in the process lane. `bounded` says which
    limits of a call cgroups enforce there.
    """

    tier: str = "none"
    why: str = ""
    withheld: Mapping[str, str] = field(default_factory=dict)
    queues: tuple[str, ...] = ()
    bounded: str = ""

    def __str__(self) -> str:
        said = f"{self.tier} ({self.why})" if self.why else self.tier
        return f"{said}, {self.bounded} by cgroup" if self.bounded else said


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """One worker process. `beat` only grows; `silent_seconds` is the time since it last grew, by the database's clock.

    A draining worker serves no `queues`. `unfit` says why it claims nothing, or left. `servers` are the MCP servers
    that it hosts. `answering` counts how many of its `concurrency` slots answered at the last heartbeat; a child that
    does not answer runs nothing.
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
    answering: int | None = None
    walls: WorkerWalls = field(default_factory=WorkerWalls)

    @property
    def serves(self) -> str:
        """Its queues as text for people."""
        return ", ".join(self.queues) or "none: it is stopping"

    @property
    def slots(self) -> int:
        """How many bodies it can currently run at once."""
        return self.concurrency if self.answering is None else self.answering


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """A worker, and how many calls it runs."""

    worker: WorkerRecord
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """One lane of a queue now: `waiting` calls are due, the oldest for `oldest_seconds`; `later` ones are not, or need
    approval.

    `workers` counts the live workers that serve it; `slots` is their total, shared with other queues, and `free` those
    unused.
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
    """Recent calls of a tool that failed alike. `example` is the last one's id, `why` what it raised and where."""

    tool: str
    status: ExecutionStatus
    error_code: str | None
    calls: int
    example: str
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemotedTool:
    """A tool hosted by live workers that was moved from the async lane to the process lane."""

    tool: str
    version: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Everything at `at`, by the database's clock. Figures cover calls that ended in the `window` seconds before it."""

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
