"""A handle waits, reports, follows and cancels; it holds only an id."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from forge_tools.client.handle import Handle
from forge_tools.errors import InvalidCallError, ResultTimeoutError
from forge_tools.model import Ended, ExecutionStatus, StateChange, ToolResult
from forge_tools.model.execution import TERMINAL
from forge_tools.model.history import EventBatch, Position


@dataclass
class Executions:
    """What a handle needs of a client, step by step."""

    statuses: Iterator[ExecutionStatus] = field(default_factory=lambda: iter(()))
    seconds: float = 0.0
    waits: int = 0
    failure: BaseException | None = None

    async def wait(self, execution_id: str, *, is_known: bool = False) -> ToolResult:
        self.waits += 1
        await asyncio.sleep(self.seconds)
        if self.failure:
            raise self.failure
        return ToolResult.ok(execution_id)

    async def record(self, execution_id: str) -> Any:
        status = next(self.statuses)
        return SimpleNamespace(status=status, is_over=status in TERMINAL)

    async def poll(self, position: Position) -> EventBatch:
        return EventBatch(state=StateChange(status=ExecutionStatus.SUCCEEDED), heard=(), position=position)

    async def cancel(self, execution_id: str, reason: str = "") -> Literal["cancelled", "requested", "over"]:
        return "requested"


async def test_a_result_is_fetched_once() -> None:
    executions = Executions()
    handle = Handle("id", executions)

    assert (await handle.result()).output == (await handle.result(30)).output == "id"
    assert executions.waits == 1


async def test_a_wait_that_takes_too_long_says_that_the_execution_goes_on() -> None:
    with pytest.raises(ResultTimeoutError, match=r"id has not ended after 0.01s. It keeps running"):
        await Handle("id", Executions(seconds=5)).result(timeout=0.01)


@pytest.mark.parametrize("seconds", [float("nan"), "5", []])
async def test_a_wait_of_no_number_of_seconds_is_refused_at_once(seconds: Any) -> None:
    executions = Executions()
    with pytest.raises(InvalidCallError, match=re.escape(f"timeout is {seconds!r}; it must be a number")):
        await Handle("id", executions).result(timeout=seconds)
    assert executions.waits == 0


async def test_a_wait_of_no_time_is_over_at_once_and_one_without_end_is_not() -> None:
    with pytest.raises(ResultTimeoutError):
        await Handle("id", Executions(seconds=5)).result(timeout=-1)
    assert (await Handle("id", Executions()).result(timeout=float("inf"))).output == "id"


async def test_a_time_out_of_something_else_is_not_taken_for_the_waits_own() -> None:
    with pytest.raises(TimeoutError, match="of the driver") as caught:
        await Handle("id", Executions(failure=TimeoutError("of the driver"))).result()

    assert not isinstance(caught.value, ResultTimeoutError)


async def test_a_handle_that_has_its_result_asks_nobody() -> None:
    executions = Executions()

    result = await Handle("id", executions, ToolResult.fail("rejected")).result(timeout=0.01)

    assert (result.error, executions.waits) == ("rejected", 0)


async def test_events_end_with_the_result() -> None:
    events = [event async for event in Handle("id", Executions()).events()]

    assert events == [Ended(status=ExecutionStatus.SUCCEEDED, result=ToolResult.ok("id"), cursor="0.0.0")]


async def test_status_and_cancel_ask_the_client() -> None:
    handle = Handle("id", Executions(iter([ExecutionStatus.RUNNING])))

    assert (await handle.status(), await handle.cancel("why")) == (ExecutionStatus.RUNNING, "requested")
    assert repr(handle) == "Handle('id')"


async def test_a_handle_seen_through_another_client_is_the_same_execution() -> None:
    one, other = Executions(), Executions()
    handle = Handle("id", one)

    assert handle.on(one) is handle
    assert (await handle.on(other).result()).output == "id"
    assert (one.waits, other.waits) == (0, 1)
