"""Limits on waiting for the database. Time that the event loop spends on other things does not count."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

STEPS = 20
"""A limit has so many steps; one turn of the loop, however long, counts as one step at most."""

SENT = "sent"
"""The argument of a cancellation of a flush that may have taken effect all the same."""


@contextmanager
def alarm(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` if what is done inside takes that long.

    A busy loop is no reason: there is time for several of its turns, and an answer that has come is heard first.
    """
    loop, pause = asyncio.get_running_loop(), seconds / STEPS
    timer: asyncio.TimerHandle

    def step(left: int) -> None:
        nonlocal timer
        if left:
            timer = loop.call_later(pause, step, left - 1)
        else:
            act()

    timer = loop.call_later(pause, step, STEPS - 1)
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def answered_within(seconds: float | None) -> AsyncIterator[None]:
    """Cut off what is done inside after that many seconds; None: never.

    Raises:
        TimeoutError: it was cut off.
    """
    if seconds is None:
        yield
        return
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        with alarm(seconds, lambda: limit.reschedule(loop.time())):
            yield
