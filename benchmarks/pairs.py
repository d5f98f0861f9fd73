"""Times two or more things in turns, so that they do not differ by the moment of measurement."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median

from benchmarks.processes import Client

Work = Callable[[], Awaitable[object]]

MILLISECONDS, MICROSECONDS = 1e3, 1e6
BACK_TO_BACK = 20
"""Calls of one client before it is another one's turn, where none waits."""


async def by_turns(works: Mapping[str, Work], times: int, unit: float = MILLISECONDS) -> dict[str, float]:
    """Do each so many times, in turns; return the median of each. The first turn warms up and does not count."""
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


def lone_calls(clients: Sequence[Client], calls: int, silence: float = 0.0) -> dict[str, list[float]]:
    """One call at a time, of one client after the other; returns the milliseconds of each call, by client.

    After so many seconds of `silence` each client makes one call, and those of the others fall into it.
    """
    took: dict[str, list[float]] = {client.name: [] for client in clients}
    at_once = 1 if silence else BACK_TO_BACK
    time.sleep(silence)
    for done in range(0, calls, at_once):
        for client in clients:
            time.sleep(silence / len(clients))
            took[client.name] += client.ask("lone", calls=min(at_once, calls - done))
    return took
