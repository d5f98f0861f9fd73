"""Data only: what a tool is, what a call carries, what an execution leaves behind."""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, computed_field

Lane = Literal["async", "process"]
Schema = dict[str, Any]

REDACTED = "[redacted]"
DEFAULT_TIMEOUT = 120.0
"""Seconds; what a call gets that nobody set a timeout for."""


class ToolCategory(StrEnum):
    """Groups that agents ask schemas by (spec S0-14)."""

    FILE = "file"
    EXECUTION = "execution"
    WEB = "web"
    TASK = "task"
    NOTEBOOK = "notebook"
    MCP = "mcp"
    OTHER = "other"


class ExecutionStatus(StrEnum):
    """Where an execution is in its life; see `TERMINAL` for those that end it."""

    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_APPROVAL = "awaiting_approval"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    EXPIRED = "expired"
    LOST = "lost"


TERMINAL = frozenset(
    {
        ExecutionStatus.SUCCEEDED,
        ExecutionStatus.FAILED,
        ExecutionStatus.TIMED_OUT,
        ExecutionStatus.CANCELLED,
        ExecutionStatus.REJECTED,
        ExecutionStatus.EXPIRED,
        ExecutionStatus.LOST,
    }
)


class ToolParameter(BaseModel):
    """One parameter of a tool.

    `items` and `properties` are JSON Schema fragments and are validated at every depth. `aliases` are accepted in calls
    and never shown in schemas. `sensitive` values are shown as `[redacted]` wherever people look.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    type: str
    description: str
    required: bool = True
    default: Any = None
    enum: list[Any] | None = None
    min_length: int | None = None
    max_length: int | None = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    items: Schema | None = None
    properties: dict[str, Schema] | None = None
    required_properties: tuple[str, ...] = ()
    sensitive: bool = False
    aliases: tuple[str, ...] = ()

    def to_json_schema(self) -> Schema:
        """Render the property schema: only what is set, `type` and `description` first (spec S0-01..04)."""
        optional = {
            "default": self.default,
            "enum": self.enum,
            "minLength": self.min_length,
            "maxLength": self.max_length,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "items": self.items,
            "properties": self.properties,
            "required": list(self.required_properties) or None,
        }
        schema: Schema = {"type": self.type, "description": self.description}
        return schema | {key: value for key, value in optional.items() if value is not None}


class Capabilities(BaseModel):
    """What a tool may do to the world, and whether running it again is harmless (spec S1-15)."""

    model_config = ConfigDict(frozen=True)

    writes_files: bool = False
    executes_commands: bool = False
    accesses_network: bool = False
    requires_engine: bool = False
    idempotent: bool = False
    retryable: bool = False


class ToolSpec(BaseModel):
    """A tool as data: what the catalogue stores and clients validate and export without importing the tool.

    `lane` is where its body runs; `timeout` its own default in seconds; `max_attempts` None means 3 if idempotent, else 1.
    `extra` says whether arguments outside `parameters` are passed on.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    category: ToolCategory
    parameters: tuple[ToolParameter, ...] = ()
    version: str = "1.0.0"
    capabilities: Capabilities = Capabilities()
    tags: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    lane: Lane = "process"
    timeout: float | None = None
    max_attempts: int | None = None
    extra: bool = False

    @cached_property
    def digest(self) -> str:
        """Short stable hash of the whole definition; two hosts with different digests of one version disagree."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def key(self) -> str:
        """`name@major`: what a worker must host to run a call accepted for this version."""
        return f"{self.name}@{self.version.partition('.')[0]}"

    @property
    def attempts(self) -> int:
        """How many body starts an execution of this tool may have."""
        return self.max_attempts or (3 if self.capabilities.idempotent else 1)

    def timeout_for(self, context: "ExecutionContext", maximum: float | None = None) -> tuple[float, str]:
        """Decide the timeout of a call in seconds, and say where it came from (contradiction C07).

        The caller's explicit value, else the tool's default, else 120 s; then capped by `maximum`.
        """
        if context.explicit_timeout is not None:
            seconds, source = context.explicit_timeout, "call"
        elif self.timeout is not None:
            seconds, source = self.timeout, "tool"
        else:
            seconds, source = context.timeout, "default"
        if maximum is not None and seconds > maximum:
            return maximum, f"operator maximum (asked {seconds:g}s by {source})"
        return seconds, source

    @cached_property
    def sensitive(self) -> frozenset[str]:
        """Names, aliases included, of the parameters whose values nobody may see."""
        return frozenset(name for p in self.parameters if p.sensitive for name in (p.name, *p.aliases))

    def redact(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Copy `parameters` as people may see them.

        Where the tool has sensitive parameters, unknown names are hidden too: they may be misspelt sensitive ones.
        """
        if not self.sensitive:
            return dict(parameters)
        open_names = {name for p in self.parameters for name in (p.name, *p.aliases)} - self.sensitive
        return {k: v if k in open_names else REDACTED for k, v in parameters.items()}


class ExecutionContext(BaseModel):
    """What a call carries besides its parameters; JSON only, since it crosses hosts (spec S0-12).

    `timeout` is in seconds, `max_output_size` in characters.
    """

    working_dir: str
    session_id: str | None = None
    agent_id: str | None = None
    dry_run: bool = False
    timeout: float = DEFAULT_TIMEOUT
    max_output_size: int = 100_000
    metadata: dict[str, Any] = Field(default_factory=dict)

    @property
    def explicit_timeout(self) -> float | None:
        """The timeout the caller set, or None where it is only the default (contradiction C07)."""
        return self.timeout if "timeout" in self.model_fields_set else None


class ToolResult(BaseModel):
    """What a tool returns; failures are results too, never exceptions (spec S0-06..11)."""

    success: bool
    output: Any = None
    error: str | None = None
    duration_ms: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    error_code: str | None = None
    error_details: Any = None

    @classmethod
    def ok(cls, output: Any, /, **metadata: Any) -> Self:
        """Build a successful result; keywords become `metadata`."""
        return cls(success=True, output=output, metadata=metadata)

    @classmethod
    def fail(cls, error: str, /, *, error_code: str | None = None, error_details: Any = None, **metadata: Any) -> Self:
        """Build a failed result; keywords other than the two named become `metadata`."""
        return cls(success=False, error=error, error_code=error_code, error_details=error_details, metadata=metadata)

    @property
    def data(self) -> Any:
        """The output, under the name that callers of the nested shape use (contradiction C08)."""
        return self.output

    def to_display(self) -> str:
        """Render for a person: the output as text, or `Error: ...`."""
        return str(self.output) if self.success else f"Error: {self.error}"

    def to_text(self) -> str:
        """Render for a model: strings as they are, anything else as JSON with indent 2 (contradiction C39)."""
        if not self.success:
            return f"Error: {self.error}"
        if isinstance(self.output, str):
            return self.output
        return json.dumps(self.output, indent=2, ensure_ascii=False, default=str)

    def to_dict(self, style: Literal["flat", "nested"] = "flat") -> dict[str, Any]:
        """Render as a dict: `flat` has these fields; `nested` has `data` and an `error` object (spec S1-08)."""
        if style == "flat":
            return self.model_dump(mode="json")
        error = {"code": self.error_code, "message": self.error, "details": self.error_details}
        return {
            "success": self.success,
            "data": self.output,
            "error": None if self.success else error,
            "metadata": {"executionTimeMs": self.duration_ms, **self.metadata},
        }


class ToolExecution(BaseModel):
    """One call as its executor saw it (spec S0-60, S3-083)."""

    tool_name: str
    parameters: dict[str, Any]
    context: ExecutionContext
    result: ToolResult
    started_at: datetime
    completed_at: datetime

    @computed_field  # type: ignore[prop-decorator]  # pydantic's documented form; mypy cannot decorate properties
    @property
    def duration_ms(self) -> float:
        """Milliseconds from start to end, by the monotonic clock where the result carries it (contradiction C20)."""
        if self.result.duration_ms is not None:
            return self.result.duration_ms
        return (self.completed_at - self.started_at).total_seconds() * 1000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how far apart, a failed call may be tried again."""

    max_attempts: int = 1
    delay_seconds: float = 0.0
    backoff: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewExecution:
    """A call as it is inserted. `parameters`, `context` and `options` are JSON texts; times are seconds from now.

    `sensitive` names the parameters whose values nobody may be shown when the row is read back.

    `issued_at` is the Unix time inside the id; the database refuses ids an hour off its own clock.
    """

    id: str
    tool: str
    tool_key: str
    tool_version: str
    tool_digest: str
    category: str
    parameters: str
    context: str
    options: str = "{}"
    sensitive: tuple[str, ...] = ()
    agent_id: str | None = None
    session_id: str | None = None
    queue: str = "default"
    lane: Lane = "process"
    timeout: float
    timeout_source: str
    soft_time_limit: float
    time_limit: float
    max_attempts: int = 1
    idempotent: bool = False
    expires_in: float = 600.0
    delay: float = 0.0
    reply_to: str | None = None

    @property
    def issued_at(self) -> float:
        return id_time(self.id)

    @property
    def size(self) -> int:
        return len(self.parameters) + len(self.context) + len(self.options)


@dataclass(frozen=True, slots=True)
class Ring:
    """One doorbell: that execution has that attempt count and may be due."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a worker may claim: its boot, lane, queues and the tool keys it hosts."""

    boot: str
    hostname: str
    pid: int
    lane: Lane
    queues: tuple[str, ...]
    tool_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An execution this worker now owns. `attempt` counts this body start; `token` fences every later write."""

    id: str
    attempt: int
    token: str
    tool: str
    tool_version: str
    parameters: str
    context: str
    timeout: float
    max_attempts: int
    idempotent: bool
    reply_to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one attempt ended. `output`, `error_details` and `metadata` are JSON texts.

    `retry_in` (seconds) puts the execution back in its queue with this attempt recorded; `give_back` puts it back with the
    attempt uncounted, because its body never started. Otherwise the execution is over.
    """

    id: str
    attempt: int
    token: str
    status: ExecutionStatus
    duration_ms: float | None = None
    output: str | None = None
    error: str | None = None
    error_code: str | None = None
    error_details: str | None = None
    metadata: str = "{}"
    retry_in: float | None = None
    give_back: bool = False

    @property
    def size(self) -> int:
        return len(self.output or "") + len(self.error or "") + len(self.error_details or "") + len(self.metadata)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that was done to an execution: by whom, and why."""

    at: datetime
    kind: str
    actor: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """One row of the view `tool_executions`: what was asked, where it is, what came of it."""

    id: str
    tool: str
    tool_version: str
    category: str
    status: ExecutionStatus
    parameters: dict[str, Any]
    context: dict[str, Any]
    agent_id: str | None
    session_id: str | None
    queue: str
    lane: str
    timeout: float
    timeout_source: str
    soft_time_limit: float
    time_limit: float
    attempt: int
    max_attempts: int
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

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStats:
    """What history says of one tool. `mean_wait_seconds` is from queued to started, over calls that started."""

    tool: str
    calls: int
    succeeded: int
    failed: int
    rejected: int
    mean_duration_ms: float | None
    max_duration_ms: float | None
    mean_wait_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """What waits and runs in one lane of one queue. `oldest_seconds` is the age of the oldest that waits."""

    queue: str
    lane: str
    queued: int
    running: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """One boot of a worker process. `beat` only grows; `silent_seconds` is how long it has not, by the database's clock."""

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
    silent_seconds: float = 0.0


def new_id() -> str:
    """Make a UUIDv7: 48 bits of Unix milliseconds, then 74 random bits (RFC 9562)."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF000 << 64) | (0x7000 << 64)
    value = value & ~(0xC000 << 48) | (0x8000 << 48)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def id_time(execution_id: str) -> float:
    """Read the Unix time in seconds out of a UUIDv7."""
    return int(execution_id[:8] + execution_id[9:13], 16) / 1000
