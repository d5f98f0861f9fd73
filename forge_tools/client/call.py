"""One tool call as its caller asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from forge_tools.model import CallOptions, ExecutionContext, IdempotencyKey, RetryPolicy, ToolResult, wrong_call
from forge_tools.schema import shown

FORM = "name, parameters, context=None, options=None"
"""How a call is asked for whose parameters are one object."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call to submit.

    `queue` overrides the configured route. It is due after `delay` seconds, or at `when`; `expires_in` is in seconds and counts
    from then; `detached` calls go on when the task that awaits them is cancelled.

    `retry` has failures tried again, as far as the tool allows it (see `may_be_retried`). `max_attempts` alone only limits
    how often the tool is started again because its worker died.

    A call with an `idempotency_key` that was called before stands for that execution and starts none; it is always detached.
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

    @classmethod
    def of(
        cls,
        name: str,
        parameters: Mapping[str, Any] | None,
        context: ExecutionContext | None,
        options: CallOptions | None,
        **fields: Any,
    ) -> "Call":
        """A call with the timeout and the retries of `options`, as far as it says any."""
        call = cls(name, {} if parameters is None else parameters, context, **fields)
        if not isinstance(options, CallOptions):
            return call
        retry = call.retry if options.retry is None else options.retry
        if options.timeout is not None and isinstance(context, ExecutionContext | None):
            context = call.effective_context.model_copy(update={"timeout": options.timeout})
        return replace(call, context=context, retry=retry)

    @property
    def due_in(self) -> float:
        """Seconds until it may run."""
        return self.delay if self.when is None else max(0.0, (self.when - datetime.now(UTC)).total_seconds())

    def refused(self, form: str) -> ToolResult | None:
        """What the caller gets, with the right `form`, where this is no call at all; None where it is one."""
        return None if (flaw := self.flaw) is None else wrong_call(flaw, form)

    @property
    def effective_context(self) -> ExecutionContext:
        return self.context if isinstance(self.context, ExecutionContext) else ExecutionContext(working_dir=".")

    @property
    def label(self) -> str:
        """The name as text, whatever the caller passed."""
        return self.name if isinstance(self.name, str) else shown(repr(self.name))

    @property
    def arguments(self) -> dict[str, Any]:
        """The parameters; none where what the caller passed is no object."""
        given = self.parameters
        return dict(given) if type(given) is dict or isinstance(given, Mapping) else {}

    @property
    def flaw(self) -> str | None:
        """What makes it no call at all."""
        if self.when is not None:
            if not isinstance(self.when, datetime) or self.when.tzinfo is None:
                return f"when is {self.when!r}; it must be a datetime with a time zone, as datetime.now(UTC) has"
            if self.delay:
                return "when and delay were both given; give one"
        is_named = isinstance(self.parameters, Mapping) and all(isinstance(key, str) for key in self.parameters)
        if is_named and type(self.name) is str and type(self.context) is ExecutionContext:
            return None
        parts: tuple[tuple[str, object, bool, str], ...] = (
            ("tool name", self.name, isinstance(self.name, str), "a string"),
            ("parameters", self.parameters, is_named, "an object with names as keys"),
            ("context", self.context, isinstance(self.context, ExecutionContext | None), "an ExecutionContext"),
        )
        for what, value, is_right, expected in parts:
            if not is_right:
                return f"Invalid {what}: expected {expected}, not {type(value).__name__}"
        return None
