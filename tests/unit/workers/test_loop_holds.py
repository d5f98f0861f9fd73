"""A body that holds the tool loop costs its neighbours one wait, whatever it does; what it leaves behind is ended."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionStatus
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from tests.unit.workers.test_loop_lane import Act, Bench, claim
from workers.lanes import loop as module
from workers.lanes.tool_loop import LoopHeldError

LET_GO = threading.Event()
NAP = 1.6
"""Far longer than what is noticed: a loaded machine may let the watch wait."""


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    for _ in range(100_000_000):
        if time.thread_time() > end:
            return


def spin_until_let_go() -> None:
    while not LET_GO.is_set():  # no deadline: what cannot be cancelled is the case
        pass


async def nap_later(seconds: float) -> None:
    await asyncio.sleep(0.05)
    time.sleep(seconds)


class Hold(BaseTool):
    """Hold the loop in one way or another."""

    name = "Hold"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (ToolParameter(name="how", type="string", description="How."),)

    async def _execute(self, context: ExecutionContext, how: str) -> ToolResult:
        if how == "nap":
            time.sleep(NAP)
        elif how == "spin":
            while True:  # no deadline: what holds the loop for ever is the case
                pass
        elif how == "nap later":
            await nap_later(NAP)
        elif how == "swallow":
            while not LET_GO.is_set():  # no deadline: what cannot be cancelled is the case
                with suppress(BaseException):
                    spin_until_let_go()  # elsewhere: Python 3.13 raises between two turns of a loop, past its own `with`
        elif how == "in a callback":
            asyncio.get_running_loop().call_soon(time.sleep, NAP)
            await asyncio.sleep(20)
        elif how == "afterwards":
            self.kept = asyncio.create_task(nap_later(NAP))
        return ToolResult.ok(how)


class Again(BaseTool):
    """Hold the loop in many steps, or in one that is short enough."""

    name = "Again"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (ToolParameter(name="how", type="string", description="How."),)

    async def _execute(self, context: ExecutionContext, how: str) -> ToolResult:
        for _ in range(1 if how == "a nap" else 60):
            if how == "spins":
                spin(0.5)
            else:
                time.sleep({"naps": 0.5, "a nap": 0.3, "short naps": 0.05}[how])
            await asyncio.sleep(0)
        return ToolResult.ok(how)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """Notices soon, so that tests are quick."""
    monkeypatch.setattr(module, "HELD_SECONDS", 0.3)
    monkeypatch.setattr(module, "HELD_AGAIN_SECONDS", 0.2)
    LET_GO.clear()
    bench = Bench(Act, Hold, Again)
    await bench.lane.start(bench)
    yield bench
    LET_GO.set()
    await bench.lane.stop()


@pytest.mark.parametrize("how", ["nap", "spin", "nap later", "in a callback"])
async def test_whoever_holds_the_loop_is_stopped_named_and_demoted_and_its_neighbour_finishes(
    bench: Bench, how: str
) -> None:
    bench.lane.run([claim("well", id="before"), claim(how, tool="Hold", id="it"), claim("well", id="after")])

    await bench.until(lambda: len(bench.outcomes) == 3)

    outcomes = {outcome.id: outcome for outcome in bench.outcomes}
    assert (outcomes["it"].status, outcomes["it"].error_code) == (ExecutionStatus.FAILED, ErrorCode.BLOCKED)
    assert "Tool Hold blocked the worker's event loop for " in str(outcomes["it"].error)
    assert outcomes["it"].retry_in is None
    assert {outcomes[name].status for name in ("before", "after")} == {ExecutionStatus.SUCCEEDED}
    assert [tool for tool, _ in bench.demoted] == ["Hold"]
    assert bench.given_up == []


@pytest.mark.parametrize("how", ["naps", "spins"])
async def test_a_body_that_holds_the_loop_again_and_again_is_blamed_for_all_its_steps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(module, "HELD_SECONDS", 1.0)
    bench.lane.run([claim(how, tool="Again", id="it"), claim("a nap of 0.3", id="neighbour")])

    await bench.until(lambda: len(bench.outcomes) == 2)

    outcomes = {outcome.id: outcome for outcome in bench.outcomes}
    assert (outcomes["it"].status, outcomes["it"].error_code) == (ExecutionStatus.FAILED, ErrorCode.BLOCKED)
    assert outcomes["neighbour"].status == ExecutionStatus.SUCCEEDED
    assert [tool for tool, _ in bench.demoted] == ["Again"]


async def test_a_body_of_many_short_steps_is_not_blamed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_SECONDS", 1.0)
    bench.lane.run([claim("short naps", tool="Again")])

    assert (await bench.outcome()).status == ExecutionStatus.SUCCEEDED
    assert bench.demoted == []


async def test_a_tool_whose_bodies_hold_the_loop_together_is_demoted_and_none_of_them_is_stopped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_SECONDS", 1.0)
    monkeypatch.setattr(module, "HELD_AGAIN_SECONDS", 1.0)
    bench.lane.run([claim("a nap", tool="Again", id=str(n)) for n in range(10)])

    await bench.until(lambda: len(bench.outcomes) == 10)

    assert {outcome.status for outcome in bench.outcomes if not outcome.give_back} == {ExecutionStatus.SUCCEEDED}
    assert [tool for tool, _ in bench.demoted] == ["Again"]


async def test_a_neighbour_whose_time_ran_out_only_because_the_loop_was_held_gets_that_time_back(bench: Bench) -> None:
    short = claim("a nap of 0.3", id="short", timeout=1.5)
    bench.lane.run([short, claim("nap later", tool="Hold", id="it")])

    await bench.until(lambda: len(bench.outcomes) == 2)

    assert {o.id: o.status for o in bench.outcomes} == {"short": "succeeded", "it": "failed"}


async def test_a_time_out_that_was_due_before_anybody_could_notice_the_block_is_a_time_out(bench: Bench) -> None:
    bench.lane.run([claim("nap", tool="Hold", timeout=0.1)])

    assert (await bench.outcome()).error_code == ErrorCode.TIMEOUT
    assert bench.demoted != []


async def test_bodies_of_a_tool_that_blocks_which_have_not_begun_are_handed_back_and_none_starts_any_more(
    bench: Bench,
) -> None:
    bench.lane.run([claim("nap", tool="Hold", id=str(n)) for n in range(5)])
    await bench.until(lambda: len(bench.outcomes) == 5)
    bench.lane.run([claim("nap", tool="Hold", id="later")])

    assert [outcome.give_back for outcome in bench.outcomes] == [True, True, True, True, False, True]
    assert [outcome.error_code for outcome in bench.outcomes if not outcome.give_back] == [ErrorCode.BLOCKED]


async def test_others_of_its_calls_that_have_begun_run_again_elsewhere_if_they_may(bench: Bench) -> None:
    calls = [claim("nap later", tool="Hold", id=str(n), idempotent=n < 3, max_attempts=3) for n in range(4)]
    bench.lane.run(calls)

    await bench.until(lambda: len(bench.outcomes) == 4)

    told = {outcome.id: (outcome.status, outcome.retry_in) for outcome in bench.outcomes}
    assert told == {"0": ("failed", None), "1": ("lost", 0.0), "2": ("lost", 0.0), "3": ("failed", None)}


async def test_what_a_body_left_behind_is_blamed_on_its_tool(bench: Bench) -> None:
    bench.lane.run([claim("afterwards", tool="Hold")])
    assert (await bench.outcome()).status == ExecutionStatus.SUCCEEDED

    await bench.until(lambda: bench.demoted)

    assert bench.demoted[0][0] == "Hold"
    assert "nap_later at test_loop_holds.py:" in bench.demoted[0][1]
    assert bench.lane.free_slots() == 10


async def test_no_slot_is_free_while_a_body_holds_the_loop(bench: Bench) -> None:
    bench.lane.run([claim("nap", tool="Hold")])

    await bench.until(lambda: bench.demoted)
    assert bench.lane.free_slots() == 0

    await bench.outcome()
    assert bench.lane.free_slots() == 10


async def test_a_holder_that_was_cancelled_is_cancelled(bench: Bench) -> None:
    bench.lane.run([claim("nap", tool="Hold")])
    await asyncio.sleep(0.05)

    bench.lane.cancel("id", 1)

    assert (await bench.outcome()).status == ExecutionStatus.CANCELLED


async def test_a_hold_that_nothing_ends_gives_up_the_process_once_and_stopping_waits_for_nobody(bench: Bench) -> None:
    bench.lane.run([claim("swallow", tool="Hold", id="it", timeout=0.9), claim("well", id="waits")])
    await bench.until(lambda: bench.given_up)
    began = time.monotonic()

    left = await bench.lane.stop()

    assert time.monotonic() - began < 20
    assert [o.error_code for o in bench.outcomes if not o.give_back] == [ErrorCode.BLOCKED]
    assert [o.id for o in bench.outcomes if o.give_back] + [one.id for one in left] == ["waits"]
    assert len(bench.given_up) == 1
    assert "tool Hold blocked its event loop for" in bench.given_up[0]
    LET_GO.set()
    Act.loop.call_soon_threadsafe(bench.lane._end)  # noqa: SLF001  which nobody calls in a process that is given up
    await bench.until(lambda: not Act.thread.is_alive())


async def test_a_lane_that_is_stopped_while_its_loop_is_held_leaves_nothing_that_never_ran(bench: Bench) -> None:
    bench.lane.run([claim("swallow", tool="Hold", timeout=60.0)])
    await bench.until(lambda: bench.demoted)
    await bench.lane.stop()

    LET_GO.set()
    await bench.until(lambda: not Act.thread.is_alive())

    assert [task.get_name() for task in asyncio.all_tasks(Act.loop)] == []


async def test_an_interrupt_that_meets_a_neighbour_leaves_no_false_result(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise LoopHeldError

    monkeypatch.setattr(Act, "_execute", interrupted)
    bench.lane.run([claim("well", idempotent=True, max_attempts=2)])
    outcome = await bench.outcome()

    assert (outcome.status, outcome.retry_in) == (ExecutionStatus.LOST, 0.0)
