"""What a body returned, or failed to, becomes what SQL keeps."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionStatus, ToolResult
from forge_tools.model.execution import Claim
from workers.outcomes import blocked, cancelled, handed_back, lost, out_of_memory, outcome_of, stopped, timed_out

CLAIM = Claim(
    id="0198c0de-0000-7000-8000-000000000001",
    attempt=1,
    token="token",
    tool="Echo",
    tool_version="1.0.0",
    parameters="{}",
    context="{}",
    timeout=5.0,
    max_attempts=3,
    idempotent=False,
    reply_to=None,
)
LIMIT = 10_000


def test_a_success_keeps_output_metadata_and_duration() -> None:
    result = ToolResult.ok({"lines": [1, 2]}, truncated=False).model_copy(update={"duration_ms": 12.5})

    outcome = outcome_of(CLAIM, result, LIMIT)

    assert outcome.status is ExecutionStatus.SUCCEEDED
    assert json.loads(outcome.output or "") == {"lines": [1, 2]}
    assert json.loads(outcome.metadata) == {"truncated": False}
    assert outcome.duration_ms == 12.5


def test_an_outcome_carries_the_fence_of_its_claim() -> None:
    claim = replace(CLAIM, attempt=2, token="second")

    outcome = outcome_of(claim, ToolResult.ok(None), LIMIT)

    assert (outcome.id, outcome.attempt, outcome.token) == (CLAIM.id, 2, "second")


def test_no_output_is_kept_as_none_and_not_as_the_word_null() -> None:
    assert outcome_of(CLAIM, ToolResult.ok(None), LIMIT).output is None


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.TIMEOUT, ExecutionStatus.TIMED_OUT),
        (ErrorCode.CANCELLED, ExecutionStatus.FAILED),  # nobody asked: only a lane knows of that
        (ErrorCode.EXECUTION_ERROR, ExecutionStatus.FAILED),
        ("A_CODE_OF_THE_TOOL", ExecutionStatus.FAILED),
        (None, ExecutionStatus.FAILED),
    ],
)
def test_a_failure_takes_the_status_that_its_code_means(code: str | None, status: ExecutionStatus) -> None:
    result = ToolResult.fail("It failed", error_code=code, error_details=["one"])

    outcome = outcome_of(CLAIM, result, LIMIT)

    assert (outcome.status, outcome.error, outcome.error_code) == (status, "It failed", code)
    assert outcome.error_details == '["one"]'


def test_a_success_stays_one_whatever_its_code_says() -> None:
    result = ToolResult(success=True, output="partial", error_code=ErrorCode.TIMEOUT)

    assert outcome_of(CLAIM, result, LIMIT).status is ExecutionStatus.SUCCEEDED


@pytest.mark.parametrize("output", [b"\xff", object(), float("nan"), {1: "one"}, {"a": {"b": float("inf")}}])
def test_an_output_that_json_cannot_carry_is_a_failed_result_that_says_so(output: Any) -> None:
    outcome = outcome_of(CLAIM, ToolResult.ok(output), LIMIT)

    assert outcome.status is ExecutionStatus.FAILED
    assert outcome.error_code == ErrorCode.UNSTORABLE
    assert outcome.output is None
    assert (outcome.error or "").startswith("The tool ran, but its result cannot be stored: output")


def test_metadata_that_json_cannot_carry_fails_the_result_too() -> None:
    outcome = outcome_of(CLAIM, ToolResult.ok("fine", when=object()), LIMIT)

    assert (outcome.status, outcome.error_code) == (ExecutionStatus.FAILED, ErrorCode.UNSTORABLE)


@pytest.mark.parametrize("details", [{"ratio": float("nan")}, "x" * 2000])
def test_a_failure_whose_details_cannot_be_stored_keeps_its_text_and_code(details: Any) -> None:
    result = ToolResult.fail("There is no such city.", error_code="NO_CITY", error_details=details, retryable=True)

    outcome = outcome_of(CLAIM, result, max_bytes=1000)

    assert (outcome.status, outcome.error_code, outcome.error_details) == (ExecutionStatus.FAILED, "NO_CITY", None)
    assert (outcome.error or "").startswith("There is no such city.\nIts details cannot be stored: error_details")
    assert json.loads(outcome.metadata) == {"retryable": True}


def test_an_output_over_the_limit_fails_and_names_both_sizes() -> None:
    result = ToolResult.ok("x" * 200).model_copy(update={"duration_ms": 3.0})

    outcome = outcome_of(CLAIM, result, max_bytes=100)

    assert outcome.error_code == ErrorCode.UNSTORABLE
    assert "202" in (outcome.error or "")
    assert "100" in (outcome.error or "")
    assert outcome.duration_ms == 3.0


def test_an_error_text_is_made_storable() -> None:
    outcome = outcome_of(CLAIM, ToolResult.fail("nul \x00 and half \ud800 a pair"), LIMIT)

    assert "\x00" not in (outcome.error or "")
    (outcome.error or "").encode()


def test_an_output_with_nul_and_half_a_surrogate_pair_comes_back_as_it_was() -> None:
    outcome = outcome_of(CLAIM, ToolResult.ok("a\x00b\ud800"), LIMIT)

    assert (outcome.output or "").isascii()
    assert json.loads(outcome.output or "") == "a\x00b\ud800"


def test_a_body_ended_by_force_says_which_limit_it_passed() -> None:
    outcome = timed_out(CLAIM, 7000.0)

    assert (outcome.status, outcome.error_code) == (ExecutionStatus.TIMED_OUT, ErrorCode.TIMEOUT)
    assert outcome.error == "Tool timed out after 5s"
    assert outcome.duration_ms == 7000.0
    assert json.loads(outcome.metadata) == {"forced": True}


def test_a_cancelled_body_ended_by_force_is_cancelled() -> None:
    outcome = cancelled(CLAIM, 10.0)

    assert (outcome.status, outcome.error_code) == (ExecutionStatus.CANCELLED, ErrorCode.CANCELLED)
    assert json.loads(outcome.metadata) == {"forced": True}


def test_a_body_that_ran_out_of_memory_is_told_its_limit_and_the_setting() -> None:
    outcome = out_of_memory(CLAIM, 2**31, 10.0)

    assert (outcome.status, outcome.error_code) == (ExecutionStatus.FAILED, ErrorCode.OUT_OF_MEMORY)
    assert outcome.error == (
        "Echo needed more than 2,048 MiB of memory, the limit for one call with all its processes. "
        "Give it less to do at once, or raise FORGE_TOOL_MEMORY on the workers (bytes; 0 for no limit)."
    )


def test_a_body_whose_worker_was_stopped_is_told_where_and_when() -> None:
    outcome = stopped(CLAIM, "box")

    assert re.match(r"The worker on box was stopped at 20\d\d-[\d :-]+ UTC while the tool ran", outcome.error or "")
    assert outcome.error_code == ErrorCode.LOST


def test_what_is_handed_back_costs_no_attempt() -> None:
    outcome = handed_back(CLAIM)

    assert outcome.give_back
    assert outcome.status is ExecutionStatus.QUEUED


def test_a_lost_body_that_is_harmless_to_repeat_runs_again() -> None:
    outcome = lost(replace(CLAIM, idempotent=True, attempt=2), "Process 7 on box ended")

    assert outcome.retry_in == 0.0
    assert outcome.error == (
        "Process 7 on box ended while the tool ran (attempt 2 of 3). Whether it took effect is unknown. "
        "The tool is idempotent, so it may be run again."
    )


@pytest.mark.parametrize("claim", [CLAIM, replace(CLAIM, idempotent=True, attempt=3)])
def test_a_lost_body_is_over_when_repeating_it_is_harmful_or_its_attempts_are_used_up(claim: Claim) -> None:
    outcome = lost(claim, "Process 7 on box ended", 40.0)

    assert outcome.retry_in is None
    assert (outcome.status, outcome.error_code) == (ExecutionStatus.LOST, ErrorCode.LOST)
    assert "Whether it took effect is unknown" in (outcome.error or "")
    assert outcome.duration_ms == 40.0


def test_a_body_that_blocked_is_told_where_for_how_long_and_what_to_do_and_is_not_retried() -> None:
    outcome = blocked(replace(CLAIM, idempotent=True), "_execute at tools.py:61", 1.34, 1400.0)

    assert (outcome.status, outcome.error_code, outcome.retry_in) == (
        ExecutionStatus.FAILED,
        ErrorCode.BLOCKED,
        None,
    )
    assert outcome.error == (
        "Tool Echo blocked the worker's event loop for 1.3s (in _execute at tools.py:61), so it was stopped. It now runs in the "
        'process lane; await instead of blocking, or declare lane = "process".'
    )
