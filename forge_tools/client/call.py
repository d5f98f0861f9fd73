"""One tool call as its caller asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forge_tools.records import CallOptions, ExecutionContext, IdempotencyKey, RetryPolicy
from forge_tools.validation import shown


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call to submit.

    `queue` overrides the configured route; `delay` is in seconds, and so is `expires_in`, which counts from when the call is
    due; `detached` calls go on when the task that awaits them is cancelled.

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
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    detached: bool = False
    idempotency_key: str | IdempotencyKey | None = None

    def with_options(self, options: CallOptions) -> "Call":
        """The same call with the timeout and the retries of `options`, as far as it says any."""
        context, retry = self.context, self.retry if options.retry is None else options.retry
        if options.timeout is not None and isinstance(context, ExecutionContext | None):
            context = self.effective_context.model_copy(update={"timeout": options.timeout})
        return replace(self, context=context, retry=retry)

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
        if (type(self.name), type(self.parameters), type(self.context)) == (str, dict, ExecutionContext):
            return None
        parts: tuple[tuple[str, object, type, str], ...] = (
            ("tool name", self.name, str, "a string"),
            ("parameters", self.parameters, Mapping, "an object with names as keys"),
            (
                "context",
                self.effective_context if self.context is None else self.context,
                ExecutionContext,
                "an ExecutionContext",
            ),
        )
        for what, value, kind, expected in parts:
            if not isinstance(value, kind):
                return f"Invalid {what}: expected {expected}, not {type(value).__name__}"
        return None
