"""Converts what a body returned, or failed to return, into the outcome that SQL stores."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from forge_tools.errors import ErrorCode, InvalidCallError
from forge_tools.model.calls import ToolResult
from forge_tools.model.diagnosis import Diagnosis, LostBody, moment
from forge_tools.model.execution import Claim, ExecutionStatus, Outcome
from forge_tools.sandbox.walls.cgroups import Limits
from forge_tools.schema import clean_text, encode_json
from forge_tools.secrets.scrubber import LEAST_IN_FAILURES, Scrubber
from forge_tools.time_limits import timed_out_after
from forge_tools.tool.failures import MOST_BYTES, diagnosis_of, named

MAX_BYTES = 1_000_000
"""The limit for a result that says why a body gave none."""


def outcome_of(claim: Claim, result: ToolResult, max_bytes: int) -> Outcome:
    """Encode a result. If it cannot be stored, a failed one loses its details; any other becomes one that says why."""
    try:
        return _encode(claim, result, max_bytes)
    except InvalidCallError as error:
        flaw = error.message
    if result.error is not None and result.error_details is not None:
        said = f"{result.error}\nIts details cannot be stored: {flaw}"
        with suppress(InvalidCallError):
            return _encode(claim, result.model_copy(update={"error": said, "error_details": None}), max_bytes)
    failed = ToolResult.fail(f"The tool ran, but its result cannot be stored: {flaw}", error_code=ErrorCode.UNSTORABLE)
    return _encode(claim, failed.model_copy(update={"duration_ms": result.duration_ms}), max_bytes)


def timed_out(claim: Claim, after_ms: float) -> Outcome:
    """Return the outcome of a body that did not stop at its timeout and was ended by force."""
    return _failed(claim, timed_out_after(claim.timeout), ErrorCode.TIMEOUT, after_ms, forced=True)


def blocked(claim: Claim, place: str, held_seconds: float, after_ms: float) -> Outcome:
    """Return the outcome of a body in the async lane that blocked, and was stopped for its neighbours' sake."""
    why = (
        f"Tool {claim.tool} blocked the worker's event loop for {held_seconds:.1f}s (in {place}), so it was stopped. It now "
        'runs in the process lane; await instead of blocking, or declare lane = "process".'
    )
    return _failed(claim, why, ErrorCode.BLOCKED, after_ms, forced=True)


def cancelled(claim: Claim, after_ms: float) -> Outcome:
    """Return the outcome of a body that somebody asked to cancel, and that therefore ended or was ended."""
    outcome = _failed(claim, "Tool execution cancelled", ErrorCode.CANCELLED, after_ms, forced=True)
    return replace(outcome, status=ExecutionStatus.CANCELLED)


def interrupted(claim: Claim, after_ms: float) -> Outcome:
    """Return the outcome of a body that nobody asked to cancel: it or a neighbour cancelled its event loop's tasks."""
    why = "Tool execution cancelled without a request: code on the event loop of the tools cancelled its task."
    # A neighbour may have done it, so another attempt may well succeed.
    hint: dict[str, Any] = {"retryable": True} if claim.idempotent else {}
    return _failed(claim, why, ErrorCode.EXECUTION_ERROR, after_ms, **hint)


def crashed(claim: Claim, error: BaseException, after_ms: float) -> Outcome:
    """Return the outcome of a body that ended in what no tool should raise, or whose row cannot be read."""
    scrubber = Scrubber(claim.secrets, LEAST_IN_FAILURES)
    text = f"Unexpected error: {named(error, scrubber)}"
    return _failed(claim, text, ErrorCode.EXECUTION_ERROR, after_ms, diagnosis_of(error, scrubber))


def out_of_memory(claim: Claim, limit: int, after_ms: float, diagnosis: Diagnosis | None = None) -> Outcome:
    """Return the outcome of a body that needed more memory than one call may have."""
    why = Limits(limit).exceeded_by(claim.tool)
    return _failed(claim, why, ErrorCode.OUT_OF_MEMORY, after_ms, diagnosis)


def not_run(claim: Claim, why: str, code: str, **metadata: Any) -> Outcome:
    """Return the outcome of a call whose body this worker must not start, and nobody else can."""
    return _failed(claim, why, code, 0.0, **metadata)


def unwalled(claim: Claim, error: Exception) -> Outcome:
    """Return the outcome of a call whose walls this process cannot put up."""
    why = f"Walls cannot be applied here: {error}. FORGE_WALLS=plain does without."
    return not_run(claim, why, ErrorCode.EXECUTION_ERROR)


def handed_back(claim: Claim) -> Outcome:
    """Return the outcome of an attempt that never started a body: it goes back to its queue uncounted."""
    return Outcome(id=claim.id, attempt=claim.attempt, token=claim.token, status=ExecutionStatus.QUEUED, give_back=True)


def lost(claim: Claim, what: str, after_ms: float | None = None) -> Outcome:
    """Return the outcome of a body whose process is gone: run it again if harmless, else say that nobody knows."""
    body = LostBody(
        what=what,
        started_at=None if claim.started_at is None else datetime.fromtimestamp(claim.started_at, UTC),
        attempt=claim.attempt,
        max_attempts=claim.max_attempts,
        idempotent=claim.idempotent,
    )
    return Outcome(
        id=claim.id,
        attempt=claim.attempt,
        token=claim.token,
        status=ExecutionStatus.LOST,
        duration_ms=after_ms,
        error=clean_text(str(body)),
        error_code=ErrorCode.LOST,
        retry_in=0.0 if body.may_run_again else None,
    )


def stopped(claim: Claim, hostname: str) -> Outcome:
    """Return the outcome of a body that was still running when its worker had to end."""
    return lost(claim, f"The worker on {hostname} was stopped at {moment(datetime.now(UTC))}")


def ends_of_cut(claims: Sequence[Claim], hostname: str) -> dict[str, list[str]]:
    """Return the ids of calls that their worker is about to cut off, by what becomes of them."""
    ends = {claim.id: stopped(claim, hostname) for claim in claims}
    return {
        "lost": [id_ for id_, end in ends.items() if end.retry_in is None],
        "run_again": [id_ for id_, end in ends.items() if end.retry_in is not None],
    }


def _failed(
    claim: Claim, why: str, code: str, after_ms: float, diagnosis: Diagnosis | None = None, **metadata: Any
) -> Outcome:
    result = ToolResult.fail(why, error_code=code, **metadata)
    return outcome_of(claim, result.model_copy(update={"duration_ms": after_ms, "diagnosis": diagnosis}), MAX_BYTES)


def _encode(claim: Claim, result: ToolResult, max_bytes: int) -> Outcome:
    output, details, why = result.output, result.error_details, result.diagnosis
    failed = ExecutionStatus.TIMED_OUT if result.error_code == ErrorCode.TIMEOUT else ExecutionStatus.FAILED
    return Outcome(
        id=claim.id,
        attempt=claim.attempt,
        token=claim.token,
        status=ExecutionStatus.SUCCEEDED if result.success else failed,
        duration_ms=result.duration_ms,
        output=None if output is None else encode_json(output, "output", max_bytes),
        error=None if result.error is None else clean_text(result.error),
        error_code=result.error_code,
        error_details=None if details is None else encode_json(details, "error_details", max_bytes),
        metadata=encode_json(result.metadata, "metadata", max_bytes),
        diagnosis=None if why is None else encode_json(why.as_dict(), "diagnosis", MOST_BYTES),
    )
