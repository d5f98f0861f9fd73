"""Two or more things timed by turns in one process: what is compared must not differ by the moment it was measured in."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from statistics import median

Work = Callable[[], Awaitable[object]]

MILLISECONDS, MICROSECONDS = 1e3, 1e6


async def by_turns(works: Mapping[str, Work], times: int, unit: float = MILLISECONDS) -> dict[str, float]:
    """Do each so many times, one after the other; returns the median of each. The first turn, which warms, does not count."""
    took: dict[str, list[float]] = {name: [] for name in works}
    for number in range(times + 1):
        for name in list(works) if number % 2 else reversed(list(works)):
            started = time.perf_counter()
            await works[name]()
            if number:
                took[name].append((time.perf_counter() - started) * unit)
            await asyncio.sleep(0)
    return {name: median(values) for name, values in took.items()}


def on_loop(work: Callable[[], object]) -> Work:
    """Let something that does not await take its turn too."""

    async def run() -> object:
        return work()

    return run
