"""What a body may ask of its call: in process, in parts of it, and outside of any call."""

import asyncio
import threading
from typing import Any

import pytest

from forge_tools.errors import ToolFailure
from forge_tools.model import Capabilities, RetryPolicy
from forge_tools.model.scope import SCOPE, CallScope
from forge_tools.tool import tool
from forge_tools.tool.base import ExecutionContext
from forge_tools.tool.executor import CallOptions, ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.waiting import wait_until

FACTS = ("execution_id", "attempt", "max_attempts", "remaining", "logger", "is_cancelled")
ASKED: list[dict[str, Any]] = []


def facts(context: ExecutionContext) -> dict[str, Any]:
    return {name: getattr(context, name) for name in FACTS}


@tool(lane="async", capabilities=Capabilities(idempotent=True))
async def ask(context: ExecutionContext, fails: int = 0) -> str:
    """Ask."""
    ASKED.append(facts(context))
    if context.attempt <= fails:
        raise ToolFailure("again", retry=True)
    made = ExecutionContext(working_dir=".")
    assert made.execution_id == context.execution_id
    return context.logger.name


@tool
def wait(context: ExecutionContext) -> None:
    """Wait until nobody waits."""
    wait_until(lambda: context.is_cancelled)
    STOPPED.set()


STOPPED = threading.Event()


@pytest.fixture
def executor() -> ToolExecutor:
    ASKED.clear()
    registry = ScopedRegistry()
    registry.register_many([ask, wait])
    return ToolExecutor(registry)


def test_outside_a_call_the_defaults_are_those_that_are_documented() -> None:
    told = facts(ExecutionContext(working_dir=".", timeout=7.0))

    assert told.pop("logger").name == "tool"
    assert told == {"execution_id": None, "attempt": 1, "max_attempts": 1, "remaining": 7.0, "is_cancelled": False}


def test_nobody_can_send_them_and_no_dump_has_them() -> None:
    sent = {"execution_id": "forged", "attempt": 9, "remaining": 0.0, "is_cancelled": True, "logger": "root"}
    context = ExecutionContext.model_validate({"working_dir": ".", **sent})
    context.enter(CallScope(execution_id="e-1", attempt=2, max_attempts=3))

    assert (context.execution_id, context.attempt, context.max_attempts) == ("e-1", 2, 3)
    assert not set(FACTS) & (set(context.model_dump()) | set(ExecutionContext.model_fields))
    for name in FACTS:
        with pytest.raises(AttributeError):
            setattr(context, name, 1)


async def test_in_process_a_body_knows_its_attempt_its_time_and_its_logger(
    executor: ToolExecutor, context: ExecutionContext
) -> None:
    options = CallOptions(timeout=30.0, retry=RetryPolicy(max_attempts=3))
    result = await executor.call("ask", {"fails": 1}, context, options)

    assert result.output == "tool.ask"
    assert [(one["execution_id"], one["attempt"], one["max_attempts"]) for one in ASKED] == [(None, 1, 3), (None, 2, 3)]
    assert all(29.0 < one["remaining"] <= 30.0 for one in ASKED)
    assert SCOPE.get() is None


async def test_a_call_that_a_body_makes_is_a_part_of_the_same_execution(
    executor: ToolExecutor, context: ExecutionContext
) -> None:
    scope = CallScope(execution_id="e-1", attempt=2, max_attempts=3)
    scope.tool = "outer"
    token = SCOPE.set(scope)
    try:
        await executor.call("ask", {}, context)
    finally:
        SCOPE.reset(token)

    assert (ASKED[0]["execution_id"], ASKED[0]["attempt"], ASKED[0]["logger"].name) == ("e-1", 2, "tool.ask")


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_body_that_blocks_sees_that_nobody_waits_any_more(
    executor: ToolExecutor, context: ExecutionContext, how: str
) -> None:
    STOPPED.clear()
    options = CallOptions(timeout=0.1 if how == "timeout" else 60.0)
    call = asyncio.ensure_future(executor.call("wait", {}, context, options))
    if how == "cancel":
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
    await asyncio.gather(call, return_exceptions=True)

    assert await asyncio.to_thread(STOPPED.wait, 30)
