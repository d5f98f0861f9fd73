"""Executions and outcomes as the values of their columns, made storable."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from forge_tools.errors import ErrorCode, UnstorableRowError
from forge_tools.records import ExecutionStatus, NewExecution, Outcome, StoredResult, ToolResult
from forge_tools.validation import clean_text, decode_json

MAX_SKEW = 3600.0
"""Seconds an id's time may be off the database's clock: ids order pages and partitions."""

EXECUTION_COLUMNS = (
    "id",
    "tool",
    "tool_key",
    "tool_version",
    "tool_digest",
    "category",
    "parameters",
    "sealed_names",
    "context",
    "options",
    "agent_id",
    "session_id",
    "queue",
    "lane",
    "timeout",
    "timeout_source",
    "soft_time_limit",
    "time_limit",
    "max_attempts",
    "idempotent",
    "delay",
    "expires_in",
    "reply_to",
)
"""`executions` without `queued_at`, which is the database's to say."""

GIVEN_COLUMNS = (*EXECUTION_COLUMNS, "sealed")
"""What is given with each new execution; the last one is for its row in the queue, with which it goes."""

RESULT_COLUMNS = ("attempt", "status", "duration_ms", "output", "error", "error_code", "error_details", "metadata")


@dataclass(frozen=True, slots=True)
class Record:
    """An execution that is over as it is inserted."""

    new: NewExecution
    outcome: Outcome

    @property
    def size(self) -> int:
        return self.new.size + self.outcome.size


class Ask(NamedTuple):
    """One claim asked for: the ring, and the token that a winner holds."""

    id: str
    attempt: int
    token: str


class OutcomeValues(NamedTuple):
    """What an attempt leaves behind, as columns of `execution_attempts`."""

    status: str
    duration_ms: float | None
    output: str | None
    error: str | None
    error_code: str | None
    error_details: str | None
    metadata: str


def execution_values(new: NewExecution) -> tuple[Any, ...]:
    """The values of `GIVEN_COLUMNS`."""
    return (
        new.id,
        clean(new.tool),
        clean(new.tool_key),
        clean(new.tool_version),
        clean(new.tool_digest),
        clean(new.category),
        new.parameters,
        json.dumps(new.sealed_names) if new.sealed_names else None,
        new.context,
        new.options,
        clean(new.agent_id),
        clean(new.session_id),
        clean(new.queue),
        clean(new.lane),
        float(new.timeout),
        clean(new.timeout_source),
        float(new.soft_time_limit),
        float(new.time_limit),
        new.max_attempts,
        new.idempotent,
        float(new.delay),
        float(new.expires_in),
        clean(new.reply_to),
        new.sealed,
    )


def outcome_values(outcome: Outcome) -> OutcomeValues:
    """The values that say how an attempt ended."""
    return OutcomeValues(
        outcome.status.value,
        outcome.duration_ms,
        outcome.output,
        clean(outcome.error),
        clean(outcome.error_code),
        outcome.error_details,
        outcome.metadata,
    )


def clean(text: str | None) -> Any:
    """Make a plain text column storable; NULL stays NULL."""
    if text is None or (text.isascii() and text.isprintable()):
        return text
    return clean_text(text)


def skewed(new: NewExecution, seconds: float) -> UnstorableRowError:
    """The refusal of an id whose time is `seconds` ahead of the database's clock (behind, if negative)."""
    direction = "ahead of" if seconds > 0 else "behind"
    return UnstorableRowError(
        f"Execution id {new.id} was made {abs(seconds):.0f} s {direction} the database's clock; "
        f"the limit is {MAX_SKEW:.0f} s. Set this host's clock (NTP) and submit again with a new id."
    )


def unstorable(outcome: Outcome, error: UnstorableRowError) -> Outcome:
    """The failed result that stands for one the database refuses."""
    return Outcome(
        id=outcome.id,
        attempt=outcome.attempt,
        token=outcome.token,
        status=ExecutionStatus.FAILED,
        duration_ms=outcome.duration_ms,
        error=f"The tool ran, but its result cannot be stored: {error.message}",
        error_code=ErrorCode.UNSTORABLE,
    )


def stored_result(execution_id: str, row: Any) -> StoredResult:
    """Build the result from the values of `RESULT_COLUMNS`, as callers get it."""
    attempt, status, duration_ms, output, error, error_code, error_details, metadata = row
    told = {} if metadata == "{}" else decode_json(metadata)
    told["execution_id"], told["attempt"] = execution_id, attempt
    return StoredResult(
        id=execution_id,
        status=ExecutionStatus(status),
        attempt=attempt,
        result=ToolResult(
            success=status == ExecutionStatus.SUCCEEDED,
            output=None if output is None else decode_json(output),
            error=error,
            duration_ms=duration_ms,
            metadata=told,
            error_code=error_code,
            error_details=None if error_details is None else decode_json(error_details),
        ),
    )


def status_of(status: str | None) -> ExecutionStatus | None:
    """Where an execution is; one that has neither ended nor waits in the queue is nowhere."""
    return None if status is None else ExecutionStatus(status)


def late_detail(outcome: Outcome) -> str:
    """What people may read about a finish that came too late."""
    output = outcome.output
    detail = {
        "attempt": outcome.attempt,
        "status": outcome.status.value,
        "duration_ms": outcome.duration_ms,
        "error": outcome.error,
        "error_code": outcome.error_code,
        "output": output if output is None or len(output) <= LATE_OUTPUT else f"{output[:LATE_OUTPUT]}...",
    }
    return json.dumps(detail)


LATE_OUTPUT = 10_000
"""Characters of a late output's JSON text that are kept."""
