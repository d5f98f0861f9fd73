"""What swallows cancellation takes no further step; what swallows even its closing is reported."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

from tests.unit.workers.test_loop_lane import claim
from workers.lanes.base import Body
from workers.lanes.tool_loop import TaskCloser, ToolLoop

GRACE = 0.6


class Bench:
    """A tool loop on this thread, one body's tasks, and the steps they took."""

    def __init__(self) -> None:
        self.loop = ToolLoop()
        self.survivors: list[Body] = []
        self.closer = TaskCloser(self.loop, grace=GRACE, survived=self.survivors.append)
        self.body = Body(claim("well"))
        self.steps = 0
        self.is_released = False

    async def swallow(self, kind: type[BaseException]) -> None:
        while not self.is_released:  # no deadline: what cannot be closed is the case
            with suppress(kind):
                self.steps += 1
                await asyncio.sleep(0.01)

    def start(self, work: Awaitable[object]) -> "asyncio.Task[object]":
        async def main() -> object:
            return await work

        return self.loop.create_task(main(), context=self.loop.context_of(self.body))

    def end(self, how: Callable[[Body], None]) -> int:
        """Start ending them, wait, and return how many steps were taken after that."""

        async def wait() -> int:
            await asyncio.sleep(0.03)
            how(self.body)
            await asyncio.sleep(GRACE + 0.4)
            before = self.steps
            await asyncio.sleep(0.1)
            return self.steps - before

        return self.loop.run_until_complete(wait())


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.is_released = True
    bench.loop.run_until_complete(asyncio.sleep(0.05))
    bench.loop.close()


async def sleep_and_clean_up(cleaned: list[str]) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.05)
        cleaned.append("up")


@pytest.mark.parametrize("how", ["politely", "by_force"])
def test_what_swallows_cancellation_takes_no_further_step(bench: Bench, how: str) -> None:
    task = bench.start(bench.swallow(asyncio.CancelledError))

    assert bench.end(getattr(bench.closer, how)) == 0

    assert task.done()
    assert bench.survivors == []


def test_a_task_asked_politely_has_the_grace_to_clean_up(bench: Bench) -> None:
    cleaned: list[str] = []
    task = bench.start(sleep_and_clean_up(cleaned))

    bench.end(bench.closer.politely)

    assert (task.cancelled(), cleaned) == (True, ["up"])


def test_tasks_of_other_bodies_go_on(bench: Bench) -> None:
    mine = bench.start(asyncio.sleep(60))
    other = bench.loop.create_task(asyncio.sleep(0.01), context=bench.loop.context_of(Body(claim("well", id="other"))))

    bench.end(bench.closer.by_force)

    assert (mine.cancelled(), other.cancelled(), other.done()) == (True, False, True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_swallows_even_its_closing_is_reported(bench: Bench) -> None:
    task = bench.loop.create_task(bench.swallow(BaseException), context=bench.loop.context_of(bench.body))

    bench.end(bench.closer.by_force)

    assert bench.survivors == [bench.body]
    assert not task.done()
