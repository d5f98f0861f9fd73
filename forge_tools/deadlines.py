"""How long a server may take to answer. Time that the event loop spends on other things does not count."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

STEPS = 20
"""A timeout has so many steps; one turn of the loop, however long, counts as one step at most."""


@contextmanager
def alarm(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` if the block takes that long.

    A busy loop does not trigger it: several turns of the loop must pass, and an answer that has arrived is read first.
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
    """Cancel the block after that many seconds; None: never.

    Raises:
        TimeoutError: it was cancelled.
    """
    if seconds is None:
        yield
        return
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        with alarm(seconds, lambda: limit.reschedule(loop.time())):
            yield
