"""What the executor retries in this process, and what it does not."""

import asyncio
from typing import Any

import pytest

from forge_tools.model import RetryPolicy
from forge_tools.tool.base import Capabilities, ExecutionContext, ToolResult
from forge_tools.tool.executor import CallOptions, ToolExecutor, may_be_retried
from forge_tools.tool.registry import ScopedRegistry
from tests.spec.sample_tools import Recorder, parameter
from tests.waiting import reached

RETRY = CallOptions(retry=RetryPolicy(max_attempts=3, delay_seconds=0.001, backoff=3))


def flaky(*answers: Any) -> Recorder:
    return Recorder(parameter("x", required=False), answer=list(answers), capabilities=Capabilities(retryable=True))


def executor_of(tool: Recorder) -> ToolExecutor:
    registry = ScopedRegistry()
    registry.register(tool)
    return ToolExecutor(registry)


async def test_a_cancellation_during_the_wait_for_a_retry_is_recorded(context: ExecutionContext) -> None:
    tool = flaky(OSError("a"))
    executor = executor_of(tool)
    options = CallOptions(retry=RetryPolicy(max_attempts=2, delay_seconds=60))
    call = asyncio.create_task(executor.call("Recorder", {}, context, options))
    await reached(lambda: tool.calls)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert [record.result.error_code for record in executor.get_executions()] == ["CANCELLED"]


async def test_retries_stop_at_the_first_success(context: ExecutionContext) -> None:
    tool = flaky(OSError("a"), "fine", "never")

    result = await executor_of(tool).call("Recorder", {}, context, RETRY)

    assert (result.output, result.metadata, len(tool.calls)) == ("fine", {"attempts": 2}, 2)


async def test_retries_end_with_the_last_failure_as_one_record(context: ExecutionContext) -> None:
    tool = flaky(OSError("a"), OSError("b"), OSError("c"), "never")
    executor = executor_of(tool)

    result = await executor.call("Recorder", {}, context, RETRY)

    assert (result.error, result.metadata["attempts"], len(tool.calls)) == ("Unexpected error: OSError: c", 3, 3)
    assert len(executor.get_executions()) == 1


@pytest.mark.parametrize("arguments", [{"x": 5}, {"y": 1, "x": 2}])
async def test_an_invalid_call_is_not_repeated(arguments: dict[str, Any], context: ExecutionContext) -> None:
    tool = flaky("never")

    result = await executor_of(tool).call("Recorder", arguments, context, RETRY)

    assert (result.error_code, tool.calls, "attempts" in result.metadata) == ("VALIDATION_ERROR", [], False)


@pytest.mark.parametrize(
    ("code", "says", "can", "expected"),
    [
        ("HTTP", None, {}, False),
        ("HTTP", None, {"retryable": True}, True),
        ("HTTP", None, {"idempotent": True}, True),
        ("HTTP", True, {}, True),
        ("HTTP", False, {"idempotent": True, "retryable": True}, False),
        (None, None, {"retryable": True}, True),
        ("TIMEOUT", None, {"retryable": True}, False),
        ("TIMEOUT", None, {"idempotent": True}, True),
        ("OUT_OF_MEMORY", None, {"retryable": True}, False),
        ("BLOCKED", True, {"idempotent": True}, False),
        ("CANCELLED", None, {"idempotent": True}, False),
    ],
)
def test_a_failure_may_be_retried_only_where_that_does_no_harm(
    code: str | None, says: bool | None, can: dict[str, bool], expected: bool
) -> None:
    assert may_be_retried(code, says, Capabilities(**can)) is expected


async def test_a_result_that_says_it_is_not_retryable_is_not_repeated(context: ExecutionContext) -> None:
    tool = flaky(ToolResult.fail("gone for good", retryable=False), "never")

    result = await executor_of(tool).call("Recorder", {}, context, RETRY)

    assert (result.error, len(tool.calls)) == ("gone for good", 1)
