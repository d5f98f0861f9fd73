"""Bodies on the tool loop end in exactly one outcome each, whatever they do to their loop."""

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from forge_tools.errors import ErrorCode, ToolError
from forge_tools.model import ExecutionStatus
from forge_tools.model.execution import Claim, Outcome
from forge_tools.time_limits import TimeLimits
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.unit.workers.host import LaneHost
from tests.waiting import wait_until
from workers.lanes.loop import LoopLane

GRACE = 0.3


async def _exit() -> None:
    raise SystemExit(3)


async def _swallow_cancels(seconds: float) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while (left := end - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


class Act(BaseTool):
    """Behave as told."""

    name = "Act"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (ToolParameter(name="how", type="string", description="How."),)
    loop: ClassVar[asyncio.AbstractEventLoop]
    thread: ClassVar[threading.Thread]
    begun: ClassVar[list[str]] = []
    tasks: ClassVar[weakref.WeakSet[asyncio.Task[Any]]] = weakref.WeakSet()

    async def initialize(self, context: ExecutionContext) -> None:
        Act.loop, Act.thread = asyncio.get_running_loop(), threading.current_thread()
        Act.begun.clear()

    async def _execute(self, context: ExecutionContext, how: str) -> ToolResult:
        Act.begun.append(how)
        Act.tasks.update(filter(None, [asyncio.current_task()]))
        if how == "sleep":
            await asyncio.sleep(30)
        elif how == "a nap of 0.3":
            await asyncio.sleep(0.3)
        elif how == "stubborn":
            await _swallow_cancels(1.0)
        elif how == "exit in a task":
            stray = asyncio.get_running_loop().create_task(_exit())
            await asyncio.sleep(0.05)
            assert isinstance(stray.exception(), SystemExit)
        elif how == "stop the loop":
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.01)
        elif how == "raise a cancellation":
            raise asyncio.CancelledError
        elif how == "cancel every task":
            for task in asyncio.all_tasks():
                task.cancel()
            await asyncio.sleep(30)
        elif how == "interrupt":
            raise KeyboardInterrupt
        return ToolResult.ok(how)


class Unready(Act):
    """Cannot start."""

    name = "Unready"

    async def initialize(self, context: ExecutionContext) -> None:
        raise RuntimeError("no licence")


class Bench(LaneHost):
    """A lane of our own, and the outcomes it told."""

    def __init__(self, *tools: type[BaseTool], concurrency: int = 10) -> None:
        super().__init__()
        registry = ScopedRegistry()
        for tool in tools:
            registry.register(tool())
        self.lane = LoopLane(
            ToolExecutor(registry, history_limit=0),
            concurrency=concurrency,
            time_limits=TimeLimits(grace=GRACE, lease=15),
            max_output_bytes=1_000_000,
        )

    async def outcome(self) -> Outcome:
        await self.until(lambda: self.outcomes)
        [outcome] = self.outcomes
        return outcome


def claim(how: str, **changes: Any) -> Claim:
    asked = Claim(
        id="id",
        attempt=1,
        token="token",
        tool="Act",
        tool_version="1.0.0",
        parameters=json.dumps({"how": how}),
        context='{"working_dir": "."}',
        timeout=20.0,
        max_attempts=1,
        idempotent=False,
        reply_to=None,
    )
    return replace(asked, **changes)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(Act)
    await bench.lane.start(bench)
    yield bench
    await bench.lane.stop()


async def test_a_body_runs_and_its_outcome_carries_its_claims_fence(bench: Bench) -> None:
    bench.lane.run([claim("well", attempt=2)])
    assert (bench.lane.free_slots(), [c.id for c in bench.lane.running()]) == (9, ["id"])

    outcome = await bench.outcome()

    assert (outcome.status, outcome.output, outcome.attempt) == (ExecutionStatus.SUCCEEDED, '"well"', 2)
    assert bench.lane.free_slots() == 10


async def test_two_attempts_of_one_execution_both_end(bench: Bench) -> None:
    bench.lane.run([claim("sleep", attempt=1, timeout=0.1)])
    bench.lane.run([claim("sleep", attempt=2, timeout=0.3)])

    await bench.until(lambda: len(bench.outcomes) == 2)

    assert [outcome.attempt for outcome in bench.outcomes] == [1, 2]
    assert bench.lane.free_slots() == 10


async def test_a_cancel_stops_the_body_of_that_attempt_only(bench: Bench) -> None:
    bench.lane.run([claim("sleep", attempt=2)])

    bench.lane.cancel("id", 1)
    bench.lane.cancel("other", 2)
    await asyncio.sleep(0.05)
    assert bench.outcomes == []

    bench.lane.cancel("id", 2)
    bench.lane.cancel("id", 2)

    assert (await bench.outcome()).status == ExecutionStatus.CANCELLED


@pytest.mark.parametrize(
    ("how", "seconds", "is_cancelled"),
    [("well", 20.0, False), ("interrupt", 20.0, False), ("sleep", 0.1, False), ("sleep", 20.0, True)],
)
async def test_a_body_that_has_ended_is_freed_without_the_collector(
    bench: Bench, how: str, seconds: float, is_cancelled: bool
) -> None:
    gc.collect()
    gc.disable()
    try:
        bench.lane.run([claim(how, timeout=seconds)])
        await bench.until(lambda: Act.tasks or bench.outcomes)
        if is_cancelled:
            bench.lane.cancel("id", 1)
        await bench.outcome()
        await bench.until(lambda: not Act.tasks)
    finally:
        gc.enable()


async def test_a_body_cancelled_before_its_first_step_ends_at_once_and_leaves_no_trace(bench: Bench) -> None:
    Act.loop.call_soon_threadsafe(lambda: None)
    bench.lane.run([claim("sleep")])
    bench.lane.cancel("id", 1)
    async with asyncio.timeout(GRACE * 0.8):
        outcome = await bench.outcome()

    assert outcome.error_code == ErrorCode.CANCELLED
    await bench.until(lambda: not asyncio.all_tasks(Act.loop))


@pytest.mark.parametrize("by", ["cancel", "timeout"])
async def test_a_body_that_will_not_stop_is_given_up_and_its_late_end_is_not_told(bench: Bench, by: str) -> None:
    bench.lane.run([claim("stubborn", timeout=0.1 if by == "timeout" else 20.0)])
    await asyncio.sleep(0.05)
    if by == "cancel":
        bench.lane.cancel("id", 1)

    outcome = await bench.outcome()

    assert outcome.status == (ExecutionStatus.CANCELLED if by == "cancel" else ExecutionStatus.TIMED_OUT)
    assert bench.lane.free_slots() == 10
    await bench.until(lambda: not asyncio.all_tasks(Act.loop))
    assert len(bench.outcomes) == 1


@pytest.mark.parametrize("how", ["exit in a task", "stop the loop"])
async def test_a_tool_that_ends_its_loop_ends_no_neighbour(bench: Bench, how: str) -> None:
    bench.lane.run([claim(how, id="one", token="one"), claim("well", id="two", token="two")])
    await bench.until(lambda: len(bench.outcomes) == 2)
    bench.lane.run([claim("well", id="three", token="three")])
    await bench.until(lambda: len(bench.outcomes) == 3)

    assert {outcome.status for outcome in bench.outcomes} == {ExecutionStatus.SUCCEEDED}


async def test_what_nobody_asked_to_cancel_is_not_cancelled(bench: Bench) -> None:
    bench.lane.run([claim("sleep", id="neighbour", token="neighbour")])
    bench.lane.run([claim(how, id=how, token=how) for how in ("raise a cancellation", "cancel every task")])
    await bench.until(lambda: len(bench.outcomes) == 3)

    assert {outcome.status for outcome in bench.outcomes} == {ExecutionStatus.FAILED}
    assert {outcome.error_code for outcome in bench.outcomes} == {ErrorCode.EXECUTION_ERROR}
    assert all(outcome.error.startswith("Tool execution cancelled") for outcome in bench.outcomes)


async def test_an_idempotent_call_that_a_neighbour_cancelled_may_be_tried_again(bench: Bench) -> None:
    bench.lane.run([claim("sleep", id="neighbour", token="neighbour", idempotent=True)])
    bench.lane.run([claim("cancel every task", id="id", token="token")])
    await bench.until(lambda: len(bench.outcomes) == 2)

    says = {outcome.id: json.loads(outcome.metadata).get("retryable") for outcome in bench.outcomes}
    assert says == {"neighbour": True, "id": None}


async def test_a_body_that_raises_what_no_tool_should_is_a_failure_that_names_it(bench: Bench) -> None:
    bench.lane.run([claim("interrupt")])

    outcome = await bench.outcome()

    assert (outcome.status, outcome.error_code) == (ExecutionStatus.FAILED, ErrorCode.EXECUTION_ERROR)
    assert outcome.error == "Unexpected error: KeyboardInterrupt"


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ({"context": "{}"}, ErrorCode.EXECUTION_ERROR),
        ({"context": "no json"}, ErrorCode.FOREIGN_ROW),
        ({"parameters": "no json"}, ErrorCode.FOREIGN_ROW),
    ],
)
async def test_a_row_that_cannot_be_read_is_a_failure_and_not_a_time_out(
    bench: Bench, broken: dict[str, str], code: ErrorCode
) -> None:
    bench.lane.run([claim("well", **broken)])

    assert (await bench.outcome()).error_code == code


async def test_a_context_with_half_a_surrogate_pair_is_read(bench: Bench) -> None:
    bench.lane.run([claim("well", context='{"working_dir": ".", "metadata": {"x": "\\ud800"}}')])

    assert (await bench.outcome()).status == ExecutionStatus.SUCCEEDED


async def test_stopping_tells_what_ended_and_returns_what_did_not() -> None:
    bench = Bench(Act)
    await bench.lane.start(bench)
    bench.lane.run([claim("well", id="done", token="done"), claim("sleep", id="left", token="left")])
    wait_until(  # on the thread of the engine, whose loop does not hear of it meanwhile
        lambda: {"well", "sleep"} <= {*Act.begun} and len(asyncio.all_tasks(Act.loop)) == 1
    )

    left = await bench.lane.stop()

    assert [outcome.id for outcome in bench.outcomes] == ["done"]
    assert [one.id for one in left] == ["left"]
    assert not Act.thread.is_alive()


async def test_a_tool_that_cannot_start_keeps_the_lane_from_starting() -> None:
    bench = Bench(Act, Unready)

    with pytest.raises(ToolError, match="no licence"):
        await bench.lane.start(bench)

    assert await bench.lane.stop() == []
