"""What a worker does about a failure: mostly nothing, unless somebody asked for more and it is harmless."""

import json
from dataclasses import replace
from typing import Any

import pytest

from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionStatus
from forge_tools.model.execution import Claim, Outcome
from workers.middleware.retries import Retries
from workers.outcomes import handed_back, lost

CLAIM = Claim(
    id="id",
    attempt=1,
    token="token",
    tool="Fetch",
    tool_version="1.0.0",
    parameters="{}",
    context="{}",
    timeout=5.0,
    max_attempts=3,
    idempotent=True,
    reply_to=None,
)
POLICY = {"max_attempts": 3, "delay_seconds": 2.0, "backoff": 3.0}
ASKED = json.dumps({"retry": POLICY})
FAILED = Outcome(id="id", attempt=1, token="token", status=ExecutionStatus.FAILED, error="503", error_code="HTTP")


def retried(outcome: Outcome = FAILED, **claim: Any) -> Outcome:
    return Retries().ended(replace(CLAIM, **claim), outcome)


def test_a_failed_result_is_an_answer_that_nobody_repeats_unasked() -> None:
    assert retried() == FAILED


def test_a_failure_for_want_of_descriptors_is_no_answer_and_tried_again_where_that_is_harmless() -> None:
    short = replace(
        FAILED, error="Unexpected error: OSError: [Errno 24] Too many open files", error_code="EXECUTION_ERROR"
    )

    assert retried(short).retry_in is not None
    assert retried(short, idempotent=False) == short


def test_a_policy_has_it_tried_again_with_back_off_until_the_attempts_are_used_up() -> None:
    delays = [retried(options=ASKED, attempt=attempt).retry_in for attempt in (1, 2, 3)]

    assert delays == [2.0, 6.0, None]


def test_jitter_waits_any_part_of_the_delay() -> None:
    options = json.dumps({"retry": {**POLICY, "jitter": True}})
    delays = [retried(options=options).retry_in or 0.0 for _ in range(200)]

    assert min(delays) < 0.5
    assert 1.5 < max(delays) <= 2.0


def test_a_delay_never_grows_over_its_limit() -> None:
    options = json.dumps({"retry": {"delay_seconds": 10.0, "backoff": 1e200, "max_delay_seconds": 40.0}})

    assert [retried(options=options, attempt=n, max_attempts=100).retry_in for n in (1, 2, 90)] == [10.0, 40.0, 40.0]


@pytest.mark.parametrize(
    "outcome",
    [
        replace(FAILED, status=ExecutionStatus.SUCCEEDED),
        replace(FAILED, status=ExecutionStatus.CANCELLED),
        *(
            replace(FAILED, error_code=code)
            for code in (
                ErrorCode.VALIDATION_ERROR,
                ErrorCode.TOOL_NOT_FOUND,
                ErrorCode.BLOCKED,
                ErrorCode.UNSTORABLE,
                ErrorCode.CANCELLED,
            )
        ),
        replace(FAILED, metadata='{"retryable":false}'),
        lost(CLAIM, "Process 7 ended"),
        handed_back(CLAIM),
    ],
)
def test_some_ends_are_never_tried_again_by_policy(outcome: Outcome) -> None:
    assert retried(outcome, options=ASKED) == outcome


def test_a_time_out_is_tried_again_if_that_is_harmless() -> None:
    late = replace(FAILED, status=ExecutionStatus.TIMED_OUT, error_code=ErrorCode.TIMEOUT)
    retryable = json.dumps({"retry": POLICY, "retryable": True})

    assert retried(late, options=ASKED).retry_in == 2.0
    assert retried(late, options=retryable, idempotent=False).retry_in is None
    assert retried(options=retryable, idempotent=False).retry_in == 2.0


def test_retries_that_would_be_harmful_are_refused_and_the_result_says_so() -> None:
    outcome = retried(replace(FAILED, metadata='{"status":503}'), options=ASKED, idempotent=False)

    assert outcome.retry_in is None
    assert json.loads(outcome.metadata) == {
        "status": 503,
        "not_retried": "Fetch is not idempotent, so a second run could repeat what the first one did.",
    }


def test_a_failure_that_says_it_is_retryable_needs_neither_policy_nor_idempotence() -> None:
    nothing_sent = replace(FAILED, metadata='{"retryable":true}')

    delay = retried(nothing_sent, idempotent=False).retry_in

    assert delay is not None
    assert 0.0 <= delay <= 1.0
    assert retried(nothing_sent, idempotent=False, attempt=3).retry_in is None


@pytest.mark.parametrize("options", ['{"retry":7}', '{"retry":{"delay_seconds":"x"}}'])
def test_options_that_are_none_ask_for_nothing(options: str) -> None:
    assert retried(options=options) == FAILED


def test_a_policy_of_a_newer_client_is_read_as_far_as_it_is_known() -> None:
    assert retried(options=json.dumps({"retry": {**POLICY, "budget": 5}})).retry_in == 2.0
