"""What a call carries, and what a tool returns."""

import json
import logging
import random
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from types import NoneType
from typing import Any, Generic, Literal, Self, TypeVar, cast

from pydantic import BaseModel, Field, InstanceOf, computed_field

from forge_tools.errors import CallFailedError, ErrorCode
from forge_tools.model.content import CONTENT, File, Image, Media, Part, Source, lines_missing, parts_of
from forge_tools.model.diagnosis import Diagnosis
from forge_tools.model.scope import SCOPE, CallScope

T = TypeVar("T")

HISTORY_LIMIT = 10_000
"""How many of its newest calls a process keeps."""

DEFAULT_TIMEOUT = 120.0
"""Seconds; the timeout of a call for which nobody set one."""

MAX_ATTEMPTS = 100
COUNT = f"a whole number from 1 to {MAX_ATTEMPTS}"
"""What a number of attempts must be."""

LONGEST_SECONDS = 10 * 365 * 86_400.0
"""Ten years; what no clock or database column can hold is refused."""


class ExecutionContext(BaseModel):
    """What a call carries besides its parameters; JSON only, since it crosses hosts (spec S0-12).

    `timeout` is in seconds, `max_output_size` in characters. `workspace` names one of the configured workspaces; by
    default the call uses the workspace of the worker that runs it.

    A body may also read what only the host knows: `execution_id`, `attempt`, `max_attempts`, `remaining`, `logger`,
    `is_cancelled`. These are not fields: callers cannot send them, and no dump contains them.
    """

    __slots__ = ("_scope",)  # a private attribute of pydantic's would triple the cost of each context

    working_dir: str
    workspace: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    dry_run: bool = False
    timeout: float = DEFAULT_TIMEOUT
    max_output_size: int = 100_000
    metadata: dict[str, Any] = Field(default_factory=dict)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress to whoever follows the call: `done` of `total`, and a message. Callable from any thread.

        It costs microseconds and never waits: of reports in quick succession only the newest arrives.
        """
        if (reporter := self._known.reporter) is not None:
            reporter.progress(done, total, message)

    def emit(self, text: str | bytes) -> None:
        """Send part of the output to whoever follows the call; the result is separate. Callable from any thread.

        It never waits: output that exceeds the buffer is dropped, and followers learn how much.
        """
        self._known.emit(text)

    def attach(self, data: bytes | PurePath | str, *, name: str | None = None, media_type: str | None = None) -> None:
        """Add a file to the result: bytes, or a path in the workspace, opened now. Callable from any thread.

        Raises:
            InvalidCallError: the call has too many already.
            SandboxError: the path leads out of the workspace, or to no file.
        """
        scope = self.scope
        if scope is not None:
            scope.attach(File(data if isinstance(data, bytes) else PurePath(data), name, media_type), self)

    @property
    def execution_id(self) -> str | None:
        """The id of the call in history; None outside a call, and if the call is not recorded, as in process."""
        return self._known.execution_id

    @property
    def attempt(self) -> int:
        """The number of this start of the body; 1 outside a call."""
        return self._known.attempt

    @property
    def max_attempts(self) -> int:
        """How many times the body may be started at most; 1 outside a call."""
        return self._known.max_attempts

    @property
    def remaining(self) -> float:
        """Seconds until the body is stopped, never below 0; outside a call, the whole timeout."""
        left = self._known.remaining
        return self.timeout if left is None else left

    @property
    def logger(self) -> logging.Logger:
        """The logger of the tool, `tool.<name>`; on a worker its messages are kept with the call. Outside one: `tool`."""
        tool = self._known.tool
        return logging.getLogger("tool" if tool is None else f"tool.{tool}")

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the body any more; blocking bodies should check it at times. False outside a call."""
        return self._known.is_cancelled

    @property
    def scope(self) -> CallScope | None:
        """The call that the context belongs to; None outside a call."""
        return getattr(self, "_scope", None) or SCOPE.get()

    @property
    def _known(self) -> CallScope:
        return self.scope or CallScope()

    def enter(self, scope: CallScope) -> None:
        """Bind this context and its copies to a call, in every thread."""
        object.__setattr__(self, "_scope", scope)

    def within(self, scope: CallScope) -> Self:
        """Return this context if it is bound to that call already, else a copy that is."""
        if getattr(self, "_scope", None) is scope:
            return self
        copy = super().__copy__()
        copy.enter(scope)
        return copy

    def __copy__(self) -> Self:
        copy, scope = super().__copy__(), getattr(self, "_scope", None)
        if scope is not None:
            copy.enter(scope)
        return copy


_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("success", (bool,)),
    ("error", (NoneType, str)),
    ("error_code", (NoneType, str)),
    ("duration_ms", (NoneType, float, int)),
    ("metadata", (dict,)),
)
"""What code that handles results relies on."""


class ToolResult(BaseModel):
    """What a tool returns; failures are results too, never exceptions (spec S0-06..11).

    `diagnosis` says where and why a body raised. It is for people: no rendering or dump includes it.
    """

    success: bool
    output: Any = None
    error: str | None = None
    duration_ms: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    error_code: str | None = None
    error_details: Any = None
    diagnosis: InstanceOf[Diagnosis] | None = Field(default=None, exclude=True, repr=False)

    __slots__ = ("_source",)

    @property
    def content(self) -> tuple[Part, ...]:
        """The parts in order: text, JSON, images, sounds, files and links. A plain output is one part."""
        source: Source | None = getattr(self, "_source", None)
        return parts_of(self.output, self.metadata.get(CONTENT), source)

    @property
    def images(self) -> tuple[Image, ...]:
        """The images among the parts."""
        return tuple(part for part in self.content if isinstance(part, Image))

    @property
    def files(self) -> tuple[Media, ...]:
        """The parts that are bytes but not images."""
        return tuple(part for part in self.content if isinstance(part, Media) and not isinstance(part, Image))

    def bind(self, source: Source) -> Self:
        """Set the source from which the bytes of its parts are read."""
        object.__setattr__(self, "_source", source)
        return self

    def __copy__(self) -> Self:
        copy, source = super().__copy__(), getattr(self, "_source", None)
        return copy if source is None else copy.bind(source)

    @classmethod
    def ok(cls, output: Any, /, **metadata: Any) -> Self:
        """Build a successful result; keywords become `metadata`."""
        return cls(success=True, output=output, metadata=metadata)

    @classmethod
    def fail(cls, error: str, /, *, error_code: str | None = None, error_details: Any = None, **metadata: Any) -> Self:
        """Build a failed result; keywords other than the two named become `metadata`."""
        return cls(success=False, error=error, error_code=error_code, error_details=error_details, metadata=metadata)

    @classmethod
    def returned(cls, value: Any, /) -> "ToolResult":
        """Return what a body returned as a result.

        Raises:
            TypeError: it is one with a field of another type: neither assignments nor copies are checked.
        """
        if not isinstance(value, ToolResult):
            return cls.ok(value)
        fields = vars(value)
        for name, kinds in _KINDS:
            if type(field := fields[name]) not in kinds and not isinstance(field, kinds):
                raise TypeError(f"'{name}' of the tool's result is of type {type(field).__name__}")
        return value

    def unwrap(self) -> Any:
        """Return the output of a successful call.

        Raises:
            CallFailedError: the call failed; the error holds this result.
        """
        if not self.success:
            raise CallFailedError(self.error or "The call failed.", self.error_code, self)
        return self.output

    @property
    def data(self) -> Any:
        """The output, under the name that callers of the nested shape use (contradiction C08)."""
        return self.output

    def to_display(self) -> str:
        """Render for a person: the output as text, or `Error: ...`."""
        return str(self.output) if self.success else f"Error: {self.error}"

    def to_text(self) -> str:
        """Render for a model: strings as they are, anything else as JSON with indent 2 (contradiction C39).

        A value that JSON cannot hold (in process a tool may return anything) is replaced by the name of its type.
        """
        text = self._output_text() if self.success else f"Error: {self.error}"
        described = self.metadata.get(CONTENT)
        return "\n".join([text, *lines_missing(text, described)]) if isinstance(described, list) else text

    def _output_text(self) -> str:
        if isinstance(self.output, str):
            return self.output
        try:
            return json.dumps(self.output, indent=2, ensure_ascii=False, default=str)
        except (TypeError, ValueError, RecursionError):
            return f"<{type(self.output).__name__} that cannot be written as JSON>"

    def to_dict(self, style: Literal["flat", "nested"] = "flat") -> dict[str, Any]:
        """Render as a dict: `flat` has these fields; `nested` has `data` and an `error` object (spec S1-08)."""
        if style == "flat":
            return self.model_dump(mode="json")
        error = {"code": self.error_code, "message": self.error, "details": self.error_details}
        return {
            "success": self.success,
            "data": self.output,
            "error": None if self.success else error,
            "metadata": {
                "executionTimeMs": self.duration_ms,
                **{_NESTED_NAMES.get(name, name): value for name, value in self.metadata.items()},
            },
        }


_NESTED_NAMES = {"bytes_read": "bytesRead", "bytes_written": "bytesWritten", "files_accessed": "filesAccessed"}


def is_count(value: object) -> bool:
    """Whether it may be a number of attempts."""
    return type(value) is int and 1 <= value <= MAX_ATTEMPTS


def is_duration(value: object) -> bool:
    """Whether it may be a number of seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST_SECONDS


def unlike(name: str, value: object, wanted: str) -> str:
    """Say what a value is, and what it must be."""
    return f"{name} is {repr(value)[:64]}; it must be {wanted}"


def flaw_of(options: object) -> str | None:
    """Return why these are not the options of a call, if so."""
    if not isinstance(options, CallOptions | None):
        return f"Invalid options: expected CallOptions, not {type(options).__name__}"
    if options is None:
        return None
    seconds, retry = options.timeout, cast("object", options.retry)  # callers without a type checker
    # Neither infinity nor an integer that no float can hold; whether it is a timeout, the checks of the call decide.
    if seconds is not None and not (type(seconds) in {int, float} and not seconds > sys.float_info.max):
        return unlike("timeout", seconds, "a number of seconds above 0")
    if not isinstance(retry, RetryPolicy | None):
        return unlike("retry", retry, "a RetryPolicy")
    return None if retry is None else retry.flaw


def wrong_call(flaw: str, form: str) -> ToolResult:
    """Build the result for a malformed call, showing the right form."""
    error = f"{flaw.rstrip('.')}. The form is {form}"
    result = ToolResult.fail(error, error_code=ErrorCode.INVALID_CALL, error_details=[error], errors=[error])
    result.duration_ms = 0.0
    return result


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
        """Milliseconds from start to end, by the monotonic clock if the result carries it (contradiction C20)."""
        if self.result.duration_ms is not None:
            return self.result.duration_ms
        return (self.completed_at - self.started_at).total_seconds() * 1000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a failed call may be tried again, and how long to wait between attempts.

    `max_attempts` includes the first attempt. The wait grows by the factor `backoff` each time, up to
    `max_delay_seconds`; `jitter` picks a random part of it, so that calls that failed together do not return together.
    """

    max_attempts: int = 1
    delay_seconds: float = 0.0
    backoff: float = 1.0
    max_delay_seconds: float = 300.0
    jitter: bool = False

    @property
    def flaw(self) -> str | None:
        """Why no call could be retried by it, if so."""
        waited = "a number of seconds from 0 to ten years"
        fields: tuple[tuple[str, bool, str], ...] = (
            ("max_attempts", is_count(self.max_attempts), COUNT),
            ("delay_seconds", is_duration(self.delay_seconds), waited),
            ("max_delay_seconds", is_duration(self.max_delay_seconds), waited),
            ("jitter", isinstance(self.jitter, bool), "True or False"),
            ("backoff", is_duration(self.backoff), "a factor of 0 or more, such as 2"),
        )
        found = ((name, wanted) for name, is_right, wanted in fields if not is_right)
        return next((unlike(f"retry.{name}", getattr(self, name), wanted) for name, wanted in found), None)

    def delay_after(self, attempt: int) -> float:
        """Return the seconds to wait after that attempt, counted from 1."""
        try:
            grown = self.delay_seconds * self.backoff ** (attempt - 1)
        except OverflowError:
            grown = self.max_delay_seconds
        longest = max(0.0, min(grown, self.max_delay_seconds))
        return random.uniform(0.0, longest) if self.jitter else longest  # noqa: S311 spreads load, hides nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """How one call differs from the usual. `timeout` is in seconds, for each attempt.

    `retry` applies only to failures that the tool allows to be retried. `skip_validation` is for callers in the
    tool's own process that have validated already; a client ignores it.
    """

    timeout: float | None = None
    retry: RetryPolicy | None = None
    skip_validation: bool = False


class Newest(Generic[T]):
    """The newest calls of a process, kept in memory: at most `count`, and older ones only as far as `MOST_KEPT` goes."""

    MOST_KEPT = 16 << 20
    """How many characters and bytes the parameters and outputs of all of them may hold."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._calls: deque[T] = deque()
        self._sizes: deque[int] = deque()
        self._size = 0

    def add(self, call: T, parameters: object, output: object) -> None:
        if not self._count:
            return
        self._calls.append(call)
        self._sizes.append(size := _size_of(parameters, output))
        self._size += size
        # The newest stays, however large: `InlineExecutor.last` is that one.
        while len(self._calls) > self._count or (self._size > self.MOST_KEPT and len(self._calls) > 1):
            self._calls.popleft()
            self._size -= self._sizes.popleft()

    def clear(self) -> None:
        self._calls.clear()
        self._sizes.clear()
        self._size = 0

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._calls))


def _size_of(*values: object) -> int:
    """Return about how many characters and bytes they hold; what they hold twice counts once."""
    size, left, seen = 0, list(values), set[int]()
    while left:
        value = left.pop()
        if isinstance(value, str | bytes | bytearray):
            size += len(value)
        elif isinstance(value, Media):
            left.append(value.data)
        elif isinstance(value, dict | list | tuple | set) and id(value) not in seen:
            seen.add(id(value))
            size += len(value)
            left.extend(value)
            if isinstance(value, dict):
                left.extend(value.values())
    return size
