"""Blamed is only who really holds the loop: not a busy loop, not a suspended process, not the next in turn."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.unit.workers.test_loop_lane import claim
from tests.waiting import reached
from workers.lanes.base import Body
from workers.lanes.tool_loop import LATE_SECONDS, POLL_SECONDS, LoopHeldError, Step, ToolLoop, Watch


class Bench:
    """A tool loop on its own thread, its watch here, and what it has seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[Step, float, str]] = []
        self.loop = ToolLoop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.is_busy = True
        self.asked = 0
        self.watch = Watch(self.loop, self.thread, self._note, is_busy=self._answer)
        self.watch.begin()

    def _answer(self) -> bool:
        self.asked += 1
        return self.is_busy

    def _note(self, step: Step) -> None:
        self.seen.append((step, step.seconds, self.watch.place(step)))

    def call(self, act: Callable[[], object], owner: Body | None = None) -> None:
        context = self.loop.context_of(owner) if owner is not None else None
        self.loop.call_soon_threadsafe(act, context=context)

    until = staticmethod(reached)

    async def stop(self) -> None:
        self.watch.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.to_thread(self.thread.join, 60)
        self.loop.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.stop()


def hold(seconds: float) -> None:
    time.sleep(seconds)


def compete(processor: int, seconds: float) -> None:
    """Use that processor for so long."""
    os.sched_setaffinity(0, {processor})
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def test_a_step_that_lasts_is_seen_with_its_owner_its_place_and_for_how_long(bench: Bench) -> None:
    owner = Body(claim("well"))

    bench.call(lambda: hold(2.0), owner)
    await bench.until(lambda: bench.seen and bench.seen[-1][1] > 0.3)

    step, seconds, place = bench.seen[-1]
    assert step.owner is owner
    assert 0.3 < seconds < 2.0
    assert place.startswith("hold at test_watch.py:")
    assert {id(seen) for seen, _, _ in bench.seen} == {id(step)}


async def test_the_place_is_the_callers_own_line_and_not_the_librarys(bench: Bench) -> None:
    slow = "[" + "1," * 300_000 + "1]"  # the watch has no turn meanwhile; one that is late blames nobody

    def parse() -> None:
        for _ in range(2000):
            json.loads(slow, parse_int=int)

    bench.call(parse, Body(claim("well")))
    await bench.until(lambda: bench.seen)

    assert bench.seen[0][2].startswith("parse at test_watch.py:")
    bench.watch.interrupt(bench.seen[0][0])


async def test_a_task_is_seen_as_one_step_between_two_awaits(bench: Bench) -> None:
    owner = Body(claim("well"))

    async def body() -> None:
        await asyncio.sleep(0.01)
        hold(1.5)

    bench.call(lambda: bench.loop.create_task(body()), owner)
    await bench.until(lambda: bench.seen)

    assert bench.seen[0][0].owner is owner


async def test_a_loop_with_many_short_steps_blames_nobody(bench: Bench) -> None:
    bench.call(lambda: [bench.loop.call_soon(hold, 0.04) for _ in range(30)])
    await bench.until(lambda: bench.loop.turn_seconds > 1.0)

    assert [seconds for _, seconds, _ in bench.seen if seconds > POLL_SECONDS * 2] == []


async def test_a_watch_that_was_itself_held_up_blames_nobody(bench: Bench) -> None:
    bench.call(lambda: hold(LATE_SECONDS + 1.3), Body(claim("well")))
    await bench.until(lambda: bench.seen)

    time.sleep(LATE_SECONDS + 0.3)  # as a suspended process would: no look comes in time
    del bench.seen[:]
    await bench.until(lambda: bench.seen)

    assert bench.seen[0][1] < LATE_SECONDS


async def test_a_watch_sleeps_while_nothing_runs_and_begins_again_with_the_next_body(bench: Bench) -> None:
    await bench.until(lambda: bench.asked > 1)
    bench.is_busy = False
    await asyncio.sleep(3 * POLL_SECONDS)
    asked = bench.asked
    await asyncio.sleep(5 * POLL_SECONDS)
    assert bench.asked == asked

    bench.is_busy = True
    bench.watch.begin()
    bench.call(lambda: hold(LATE_SECONDS), Body(claim("well")))
    await bench.until(lambda: bench.seen)


async def test_a_step_that_lasts_is_watched_to_its_end_though_no_body_runs(bench: Bench) -> None:
    bench.call(lambda: hold(1.0))
    await bench.until(lambda: bench.seen)
    bench.is_busy = False

    await bench.until(lambda: bench.seen[-1][1] > 0.5)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not tell who waits")
async def test_the_wait_for_a_processor_that_others_use_is_no_holding(bench: Bench) -> None:
    one = min(os.sched_getaffinity(0))
    busy = f"import os\nos.sched_setaffinity(0, {{{one}}})\nprint(flush=True)\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) for _ in range(3)]
    try:
        await asyncio.to_thread(lambda: [other.stdout and other.stdout.readline() for other in others])
        bench.call(lambda: compete(one, seconds=2.0), Body(claim("well")))
        await bench.until(lambda: bench.seen and bench.seen[-1][1] > 1.0)
    finally:
        for other in others:
            with other:
                other.kill()

    step, *_ = bench.seen[-1]
    assert step.holding < step.seconds * 0.7


async def test_an_interrupt_reaches_a_step_that_spins(bench: Bench) -> None:
    met: list[BaseException] = []

    def spin() -> None:
        try:
            while True:  # no deadline: what holds the loop for ever is the case
                pass
        except BaseException as error:
            met.append(error)

    bench.call(spin, Body(claim("well")))
    await bench.until(lambda: bench.seen)

    assert bench.watch.interrupt(bench.seen[-1][0])
    await bench.until(lambda: met)

    assert isinstance(met[0], LoopHeldError)


async def test_an_interrupt_that_comes_too_late_hits_nobody(bench: Bench) -> None:
    reached = threading.Event()
    bench.call(lambda: hold(1.5), Body(claim("well")))
    await bench.until(lambda: bench.seen)
    late = bench.seen[-1][0]
    await bench.until(lambda: bench.loop.turn is None)

    assert not bench.watch.interrupt(late)
    assert bench.watch.place(late) == "a step that has ended"
    bench.call(lambda: sum(range(1000)))
    bench.call(reached.set)

    assert await asyncio.to_thread(reached.wait, 60)


async def test_an_interrupt_that_a_c_call_outlives_hits_it_and_not_the_next(bench: Bench) -> None:
    met: list[str] = []

    def nap() -> None:
        try:
            time.sleep(1.5)
        except LoopHeldError:
            met.append("the napper")

    def work() -> None:
        try:
            sum(n for n in range(100_000))
        except LoopHeldError:
            met.append("a neighbour")

    bench.call(nap, Body(claim("well")))
    bench.call(work)
    await bench.until(lambda: bench.seen)
    bench.watch.interrupt(bench.seen[-1][0])
    await bench.until(lambda: bench.loop.turn is None)

    assert met == ["the napper"]
