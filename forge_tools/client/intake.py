"""Turns a call into the row that SQL accepts, or into a rejection that says what to mend."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from forge_tools.client.snapshot import Snapshot
from forge_tools.config import Settings
from forge_tools.dispatch import Limits
from forge_tools.errors import ErrorCode, InvalidCallError
from forge_tools.records import (
    ExecutionContext,
    ExecutionStatus,
    NewExecution,
    Outcome,
    RetryPolicy,
    ToolCategory,
    ToolResult,
    ToolSpec,
    new_id,
)
from forge_tools.validation import clean_text, encode_json, shown

MAX_NAME = 200
MAX_ATTEMPTS = 100
LONGEST_SECONDS = 10 * 365 * 86_400.0
"""Ten years; what no clock or database column can hold is refused here."""
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,204}")


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call to submit.

    `queue` overrides the configured route; `delay` is in seconds, and so is `expires_in`, which counts from when the call is
    due; `detached` calls go on when the task that awaits them is cancelled.

    `retry` has failures tried again, as far as the tool allows it (see `may_be_retried`). `max_attempts` alone only limits
    how often the tool is started again because its worker died.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    context: ExecutionContext | None = None
    queue: str | None = None
    expires_in: float | None = None
    delay: float = 0.0
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    detached: bool = False

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
        return dict(self.parameters) if isinstance(self.parameters, Mapping) else {}

    @property
    def flaw(self) -> str | None:
        """What makes it no call at all."""
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


@dataclass(frozen=True, slots=True)
class Accepted:
    """A call that may be submitted; `parameters` as people may see them."""

    new: NewExecution
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A call that is over before it began: the failed result, and the record that keeps it."""

    new: NewExecution
    outcome: Outcome
    result: ToolResult


class Intake:
    """Checks calls against a catalogue snapshot and this client's settings."""

    def __init__(self, settings: Settings, submitter: str) -> None:
        self._settings = settings
        self._submitter = submitter

    def prepare(self, call: Call, snapshot: Snapshot) -> Accepted | Rejected:
        """Validate, complete and encode a call. Never raises for what a caller may get wrong."""
        if call.flaw is not None:
            return self._reject(call, call.flaw, ErrorCode.VALIDATION_ERROR)
        spec = snapshot.find(call.name)
        if spec is None:
            known = ", ".join(spec.name for spec in snapshot.specs[:20]) or "none; is a worker running?"
            return self._reject(
                call, f"Unknown tool: {clean_text(call.name)[:MAX_NAME]}", ErrorCode.TOOL_NOT_FOUND, available=known
            )
        try:
            return self._accept(call, spec, snapshot)
        except InvalidCallError as error:
            required = [parameter.name for parameter in spec.parameters if parameter.required]
            return self._reject(
                call, error.message, ErrorCode.VALIDATION_ERROR, spec, errors=error.details, required=required
            )

    def _accept(self, call: Call, spec: ToolSpec, snapshot: Snapshot) -> Accepted:
        limit = self._settings.max_parameter_bytes
        context = call.effective_context
        encode_json(call.arguments, "parameters", limit)
        validator = snapshot.validator(spec)
        errors = validator.all_errors(call.parameters)
        if errors:
            raise InvalidCallError(errors[0], errors)
        parameters = validator.effective(call.parameters)
        _check_attempts(call)
        routing = self._routing(call, spec)
        new = NewExecution(
            **self._request(call, spec),
            **routing,
            **self._timing(call, spec, routing["queue"]),
            **_repetition(call, spec),
            parameters=encode_json(parameters, "parameters", limit),
            context=encode_json(context.model_dump(), "context", limit),
        )
        return Accepted(new, spec.redact(parameters))

    def _request(self, call: Call, spec: ToolSpec) -> dict[str, Any]:
        context = call.effective_context
        return {
            "id": new_id(),
            "tool": spec.name,
            "tool_key": spec.key,
            "tool_version": spec.version,
            "tool_digest": spec.digest,
            "category": spec.category.value,
            "sensitive": tuple(spec.sensitive),
            "agent_id": context.agent_id,
            "session_id": context.session_id,
            "idempotent": spec.capabilities.idempotent,
            "reply_to": self._submitter,
        }

    def _routing(self, call: Call, spec: ToolSpec) -> dict[str, Any]:
        queue = self._settings.queue_for(spec.name, spec.category.value) if call.queue is None else call.queue
        if not isinstance(queue, str) or not _QUEUE.fullmatch(queue):
            raise InvalidCallError(
                f"Queue {shown(repr(queue))} is not a name; use up to 205 letters, digits, '-', '_' and '.'"
            )
        return {"queue": queue, "lane": spec.lane}

    def _timing(self, call: Call, spec: ToolSpec, queue: str) -> dict[str, Any]:
        timeout, source = spec.timeout_for(call.effective_context, self._settings.max_timeout)
        expires_in = self._settings.expiry_for(queue) if call.expires_in is None else call.expires_in
        for name, value in (("timeout", timeout), ("expires_in", expires_in), ("delay", call.delay)):
            if not _is_duration(value) or (value == 0 and name != "delay"):
                raise InvalidCallError(
                    f"{name} is {value!r}; it must be a number of seconds above 0, and at most ten years"
                )
        limits = Limits.of(timeout, claim_patience=self._settings.claim_patience, kill_grace=self._settings.kill_grace)
        return {
            "timeout": timeout,
            "timeout_source": source,
            "soft_time_limit": limits.soft,
            "time_limit": limits.hard,
            "delay": call.delay,
            "expires_in": call.delay + expires_in,
        }

    def _reject(
        self, call: Call, error: str, code: ErrorCode, spec: ToolSpec | None = None, **metadata: Any
    ) -> Rejected:
        context = call.effective_context
        spec = spec or ToolSpec(
            name=clean_text(call.label)[:MAX_NAME], description="unknown", category=ToolCategory.OTHER
        )
        result = ToolResult.fail(error, error_code=code, **metadata)
        new = NewExecution(
            **self._request(call, spec),
            parameters=_kept(spec.redact(call.arguments), self._settings.max_parameter_bytes),
            context=_kept(context.model_dump(), self._settings.max_parameter_bytes),
            timeout=0.0,
            timeout_source="rejected",
            soft_time_limit=0,
            time_limit=0,
        )
        outcome = Outcome(
            id=new.id,
            attempt=0,
            token=new_id(),
            status=ExecutionStatus.REJECTED,
            error=error,
            error_code=code,
            metadata=encode_json(result.metadata, "metadata", self._settings.max_parameter_bytes),
        )
        return Rejected(new, outcome, result)


def _check_attempts(call: Call) -> None:
    if call.max_attempts is not None and not _is_count(call.max_attempts):
        raise InvalidCallError(
            f"max_attempts is {call.max_attempts!r}; it must be a whole number from 1 to {MAX_ATTEMPTS}"
        )
    if call.retry is None:
        return
    if not isinstance(call.retry, RetryPolicy):
        raise InvalidCallError(f"retry is {shown(repr(call.retry))}; it must be a RetryPolicy")
    if not _is_count(call.retry.max_attempts):
        raise InvalidCallError(
            f"retry.max_attempts is {call.retry.max_attempts!r}; it must be a whole number from 1 to {MAX_ATTEMPTS}"
        )
    if call.max_attempts not in {None, call.retry.max_attempts}:
        raise InvalidCallError(
            f"max_attempts is {call.max_attempts}, but retry.max_attempts is {call.retry.max_attempts}; give one of them"
        )
    for name in ("delay_seconds", "max_delay_seconds"):
        if not _is_duration(getattr(call.retry, name)):
            raise InvalidCallError(
                f"retry.{name} is {getattr(call.retry, name)!r}; it must be a number of seconds from 0 to ten years"
            )
    if not isinstance(call.retry.jitter, bool):
        raise InvalidCallError(f"retry.jitter is {shown(repr(call.retry.jitter))}; it must be True or False")
    if not _is_duration(call.retry.backoff):
        raise InvalidCallError(f"retry.backoff is {call.retry.backoff!r}; it must be a factor of 0 or more, such as 2")


def _repetition(call: Call, spec: ToolSpec) -> dict[str, Any]:
    """How often a body may start, and under `options` what a worker needs to decide on the next time."""
    retry = call.retry or spec.retry
    options: dict[str, Any] = {} if retry is None else {"retry": asdict(retry)}
    if spec.capabilities.retryable and not spec.capabilities.idempotent:
        options["retryable"] = True
    attempts = call.max_attempts or (call.retry.max_attempts if call.retry else spec.attempts)
    return {"max_attempts": attempts, "options": json.dumps(options, separators=(",", ":"))}


def _kept(values: Mapping[str, Any], limit: int) -> str:
    """Encode what the caller sent for the record of a rejection, or say why it cannot be kept."""
    try:
        return encode_json(dict(values), "parameters", limit)
    except InvalidCallError as error:
        return encode_json({"not kept": error.message}, "parameters", limit)


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_ATTEMPTS


def _is_duration(value: object) -> bool:
    return type(value) in {int, float} and 0 <= value <= LONGEST_SECONDS  # type: ignore[operator]  # numbers by now
