"""The tool loop knows its turns, leaves excused ones out of its clock, and knows whose task is whose."""

import asyncio
import time
from collections.abc import Iterator
from contextvars import Context
from typing import Any

import pytest

from tests.unit.workers.test_loop_lane import claim
from workers.lanes.base import Body
from workers.lanes.tool_loop import OWNER, ToolLoop


@pytest.fixture
def loop() -> Iterator[ToolLoop]:
    loop = ToolLoop()
    yield loop
    loop.close()


def excuse_this_turn(loop: ToolLoop) -> None:
    turn = loop.turn
    assert turn is not None
    loop.excuse(turn)


def test_a_loop_that_does_not_run_is_in_no_turn(loop: ToolLoop) -> None:
    assert (loop.turn, loop.turn_seconds) == (None, 0.0)


def test_each_turn_has_its_number_and_knows_how_long_it_has_lasted(loop: ToolLoop) -> None:
    async def look() -> tuple[list[int | None], float, float, float]:
        first = loop.turn
        time.sleep(0.05)
        same, long, ended = loop.turn, loop.turn_seconds, time.monotonic()
        await asyncio.sleep(0)
        return [first, same, loop.turn], long, loop.turn_seconds, time.monotonic() - ended

    (first, same, next_), long, short, since = loop.run_until_complete(look())

    assert first == same
    assert next_ != same
    assert long >= 0.05
    assert short <= since


@pytest.mark.parametrize("is_excused", [True, False])
def test_only_an_excused_turn_makes_no_timer_late(loop: ToolLoop, is_excused: bool) -> None:
    async def hold() -> None:
        if is_excused:
            excuse_this_turn(loop)
        time.sleep(1.5)

    async def timed() -> bool:
        slow = asyncio.ensure_future(hold())
        async with asyncio.timeout(1.0) as limit:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return slow.done() and not limit.expired()

    wide, began = time.monotonic(), loop.time()
    assert loop.run_until_complete(timed())
    counted = loop.time() - began
    assert (time.monotonic() - wide - counted >= 1.5) if is_excused else (counted >= 1.5)


def test_the_clock_never_goes_back_between_turns(loop: ToolLoop) -> None:
    async def main() -> list[float]:
        times = []
        for n in range(6):
            times.append(loop.time())
            if n % 2:
                excuse_this_turn(loop)
            time.sleep(0.01)
            await asyncio.sleep(0)
        return times

    times = loop.run_until_complete(main())

    assert times == sorted(times)


def test_tasks_belong_to_the_body_in_whose_context_they_were_made(loop: ToolLoop) -> None:
    mine, other = Body(claim("well")), Body(claim("well", id="other"))

    async def inner() -> object:
        return OWNER.get()

    async def outer() -> tuple[list[Any], int, int]:
        plain = asyncio.ensure_future(inner())
        bare = asyncio.get_running_loop().create_task(inner(), context=Context())
        counts = (len(loop.tasks_of(mine)), len(loop.tasks_of(other)))
        return [await plain, await bare], *counts

    task = loop.create_task(outer(), context=loop.context_of(mine))
    (inherited, hidden), mine_count, other_count = loop.run_until_complete(task)

    assert (inherited, hidden) == (mine, None)
    assert (mine_count, other_count) == (3, 0)
    assert loop.tasks_of(mine) == []


def test_a_tool_cannot_change_how_the_tasks_of_others_are_made(loop: ToolLoop) -> None:
    with pytest.raises(RuntimeError, match="Tools share"):
        loop.set_task_factory(lambda *_, **__: asyncio.Task(asyncio.sleep(0)))
