"""One tool call as requested by its caller, and the list of those that one client has awaited; the audit is in SQL."""

import builtins
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from forge_tools.model.calls import (
    HISTORY_LIMIT,
    CallOptions,
    ExecutionContext,
    Newest,
    RetryPolicy,
    ToolExecution,
    ToolResult,
    flaw_of,
    wrong_call,
)
from forge_tools.model.execution import IdempotencyKey
from forge_tools.model.secret_names import REDACTED, without_secrets
from forge_tools.model.tools import ToolSpec
from forge_tools.schema import shown
from forge_tools.secrets.detection import SecretDetector

FORM = "name, parameters, context=None, options=None"
"""How to make a call whose parameters are one object."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call to submit.

    `queue` overrides the configured route. The call is due after `delay` seconds, or at `when`; `expires_in` is in
    seconds and counts from then; `detached` calls continue when the task that awaits them is cancelled.

    `retry` retries failures, as far as the tool allows it (see `may_be_retried`). `max_attempts` without it only limits
    how often the tool is started again because its worker died.

    A call with an `idempotency_key` that was used before stands for that execution and starts none; it is always
    detached.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)
    context: ExecutionContext | None = None
    queue: str | None = None
    expires_in: float | None = None
    delay: float = 0.0
    when: datetime | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    detached: bool = False
    idempotency_key: str | IdempotencyKey | None = None

    arguments: dict[str, Any] = field(init=False, repr=False, compare=False)
    """The parameters; empty if the caller passed no mapping."""
    effective_context: ExecutionContext = field(init=False, repr=False, compare=False)
    label: str = field(init=False, repr=False, compare=False)
    """The name as text, whatever the caller passed."""
    flaw: str | None = field(init=False, repr=False, compare=False)
    """Why it is not a valid call, if so."""

    @classmethod
    def of(
        cls,
        name: str,
        parameters: Mapping[str, Any] | None,
        context: ExecutionContext | None,
        options: CallOptions | None,
        **fields: Any,
    ) -> "Call":
        """Build a call with the timeout and the retries that `options` sets; keywords that are not fields make it invalid."""
        strange = fields.keys() - _FIELDS
        known = {name: value for name, value in fields.items() if name not in strange}
        call = cls(name, {} if parameters is None else parameters, context, **known)
        flaw = flaw_of(options)
        if strange:
            words = ", ".join(sorted(map(shown, strange)))
            flaw = f"{words} may be a parameter of the tool; parameters go into the object `parameters`"
        if flaw is not None:
            object.__setattr__(call, "flaw", call.flaw or flaw)
        if options is None or flaw is not None:
            return call
        retry = call.retry if options.retry is None else options.retry
        if options.timeout is not None and isinstance(context, ExecutionContext | None):
            context = call.effective_context.model_copy(update={"timeout": options.timeout})
        return replace(call, context=context, retry=retry)

    def __post_init__(self) -> None:
        own = object.__setattr__  # as frozen dataclasses do
        own(self, "arguments", dict(self.parameters) if isinstance(self.parameters, Mapping) else {})
        is_context = isinstance(self.context, ExecutionContext)
        own(self, "effective_context", self.context if is_context else ExecutionContext(working_dir="."))
        own(self, "label", self.name if isinstance(self.name, str) else shown(repr(self.name)))
        own(self, "flaw", self._flaw())

    @property
    def due_in(self) -> float:
        """Seconds until it may run."""
        return self.delay if self.when is None else max(0.0, (self.when - datetime.now(UTC)).total_seconds())

    def refused(self, form: str) -> ToolResult | None:
        """Return the caller's result, with the right `form`, if this is not a valid call; else None."""
        return None if self.flaw is None else wrong_call(self.flaw, form)

    def _flaw(self) -> str | None:
        if self.when is not None:
            if not isinstance(self.when, datetime) or self.when.tzinfo is None:
                return f"when is {self.when!r}; it must be a datetime with a time zone, as datetime.now(UTC) has"
            if self.delay:
                return "when and delay were both given; give one"
        is_named = isinstance(self.parameters, Mapping) and all(isinstance(key, str) for key in self.parameters)
        parts: tuple[tuple[str, object, bool, str], ...] = (
            ("tool name", self.name, isinstance(self.name, str), "a string"),
            ("parameters", self.parameters, is_named, "an object with names as keys"),
            ("context", self.context, isinstance(self.context, ExecutionContext | None), "an ExecutionContext"),
        )
        for what, value, is_right, expected in parts:
            if not is_right:
                has_other_keys = value is self.parameters and isinstance(value, Mapping)
                found = "one with other keys" if has_other_keys else type(value).__name__
                return f"Invalid {what}: expected {expected}, not {found}"
        return None


_FIELDS = frozenset(one.name for one in fields(Call) if one.init)


def without_texts(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for an unknown tool: any text among them may be the secret of one whose name is misspelt."""
    return {
        name: REDACTED if isinstance(value, str | list | tuple | dict) else value for name, value in arguments.items()
    }


class _Ended(NamedTuple):
    """What is kept of a call, in few objects: there may be ten thousand, and Python's collector walks each.

    `fields` are those of its result. Times are Unix seconds.
    """

    name: str
    arguments: dict[str, Any]
    context: ExecutionContext
    spec: ToolSpec | None
    started: float
    completed: float
    fields: dict[str, Any]


class Awaited:
    """The newest calls, in the order in which they ended."""

    def __init__(self) -> None:
        self._ended: Newest[_Ended] = Newest(HISTORY_LIMIT)

    def add(self, call: Call, spec: ToolSpec | None, result: ToolResult, started: float) -> None:
        """Record how a call ended; `spec` is its tool, None if unknown."""
        fields = dict(vars(result))  # the caller has the result, too, and may change it
        told = call.label, call.arguments, call.effective_context
        self._ended.add(_Ended(*told, spec, started, time.time(), fields), call.arguments, result.output)

    def list(self) -> builtins.list[ToolExecution]:
        """Return the calls with their parameters and contexts as people may see them."""
        return [_execution(one) for one in self._ended]

    def clear(self) -> None:
        self._ended.clear()


def _execution(ended: _Ended) -> ToolExecution:
    if ended.spec is not None:
        parameters, context = SecretDetector(ended.spec).seen(ended.arguments, ended.context)
    else:
        metadata = without_secrets(ended.context.metadata)
        parameters, context = without_texts(ended.arguments), ended.context.model_copy(update={"metadata": metadata})
    result = ToolResult.model_construct(**ended.fields)
    return ToolExecution.model_construct(
        tool_name=ended.name,
        parameters=parameters,
        context=context,
        result=result,
        started_at=datetime.fromtimestamp(ended.started, UTC),
        completed_at=datetime.fromtimestamp(  # no earlier than its start, though the clock may have been set back
            max(ended.started + (result.duration_ms or 0.0) / 1000, ended.completed), UTC
        ),
    )
