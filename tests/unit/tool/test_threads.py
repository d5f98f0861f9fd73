"""Functions that block run beside the event loop: they hold up nobody, and nobody waits for those that never return."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from forge_tools.tool import tool
from forge_tools.tool.base import ExecutionContext
from tests.waiting import within

CONTEXT = ExecutionContext(working_dir="/srv")


async def test_a_blocking_function_does_not_hold_the_loop() -> None:
    @tool
    def block() -> str:
        """Block."""
        time.sleep(0.2)
        return threading.current_thread().name

    turns = 0
    calling = asyncio.create_task(block.execute(CONTEXT))
    time_left = within(60, "the call does not end")
    while not calling.done() and next(time_left):
        await asyncio.sleep(0.005)
        turns += 1

    assert turns > 5
    assert (await calling).output == "forge-function"


async def test_many_blocking_calls_run_at_once() -> None:
    together = threading.Barrier(40, timeout=10)

    @tool
    def meet() -> int:
        """Wait for the others."""
        return together.wait()

    results = await asyncio.gather(*(meet.execute(CONTEXT) for _ in range(40)))

    assert sorted(result.output for result in results) == list(range(40))


async def test_a_cancelled_call_is_left_behind_silently() -> None:
    release = threading.Event()
    ended = threading.Event()

    @tool
    def stuck() -> None:
        """Wait."""
        release.wait(10)
        ended.set()

    calling = asyncio.create_task(stuck.execute(CONTEXT))
    await asyncio.sleep(0.02)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling

    release.set()
    assert await asyncio.to_thread(ended.wait, 5)


async def test_an_iterator_is_read_to_its_end_on_the_thread_of_its_function() -> None:
    @tool
    def count() -> Iterator[str]:
        """Count."""
        return (threading.current_thread().name for _ in range(2))

    assert (await count.execute(CONTEXT)).output == ["forge-function"] * 2


async def test_what_an_iterator_raises_is_the_error_of_the_function() -> None:
    def rows() -> Iterator[int]:
        yield 1
        raise ValueError("row 2 is broken")

    @tool
    def read() -> Iterator[int]:
        """Read rows."""
        return rows()

    assert (await read.execute(CONTEXT)).error == "Unexpected error: row 2 is broken"
