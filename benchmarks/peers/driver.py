"""`python -m benchmarks.peers.driver ADAPTER MEASURE COUNT`: one peer's client, in that peer's environment.

It connects and warms up, reports that it is ready, waits for a line, measures, and prints its readings as a line of JSON.
"""

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import quantiles
from typing import cast

from benchmarks.peers.subject import READINGS, READY, SLEPT, Adapter, Subject

WARMING_CALLS = 10
WARMING_BURST = 100
START_SECONDS = 20.0
START_PAUSE_SECONDS = 0.2
SECONDS = 0.2

Readings = dict[str, float]


async def drive(adapter: Adapter, measure: str, count: int) -> Readings:
    """Measure between two moments that the parent also knows, so that it can read the workers' processor time."""
    async with adapter.connect() as subject:
        await _warm_up(subject)
        _wait_for_go()
        used = time.process_time()
        readings = await MEASURES[measure](subject, count)
        return {**readings, "client_cpu": time.process_time() - used}


async def round_trips(subject: Subject, count: int) -> Readings:
    times = []
    for number in range(count):
        started = time.perf_counter()
        returned = await subject.call(number)
        times.append(time.perf_counter() - started)
        _must_be(returned, number)
    cuts = quantiles(times, n=100)
    return {"p50": cuts[49] * 1000, "p99": cuts[98] * 1000, "seconds": sum(times)}


async def burst(subject: Subject, count: int) -> Readings:
    numbers = range(count)
    started = time.perf_counter()
    returned = await subject.burst(numbers)
    seconds = time.perf_counter() - started
    _must_be(returned, list(numbers))
    return {"seconds": seconds}


async def sleeps(subject: Subject, count: int) -> Readings:
    started = time.perf_counter()
    returned = await subject.sleeps(count, SECONDS)
    seconds = time.perf_counter() - started
    _must_be(returned, [SLEPT] * count)
    return {"seconds": seconds}


MEASURES: dict[str, Callable[[Subject, int], Awaitable[Readings]]] = {
    "round-trip": round_trips,
    "burst": burst,
    "sleeps": sleeps,
}


async def _warm_up(subject: Subject) -> None:
    """Make both sides and every worker process load what they load at first use."""
    await _until_served(subject)
    for number in range(WARMING_CALLS):
        _must_be(await subject.call(number), number)
    numbers = range(WARMING_BURST)
    _must_be(await subject.burst(numbers), list(numbers))


async def _until_served(subject: Subject) -> None:
    """Call until a call succeeds: the workers may not have announced their tasks yet."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return _must_be(await subject.call(0), 0)
        except Exception:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(START_PAUSE_SECONDS)


def _must_be(returned: object, expected: object) -> None:
    if returned != expected:
        raise RuntimeError(f"A call returned {str(returned)[:200]} where {str(expected)[:200]} was due")


def _wait_for_go() -> None:
    print(READY, flush=True)
    if not sys.stdin.readline():
        raise SystemExit("The benchmark that started this client is gone.")


def main(arguments: Sequence[str]) -> None:
    name, measure, count = arguments
    adapter = cast(Adapter, importlib.import_module(f"benchmarks.peers.adapters.{name}"))
    print(READINGS + json.dumps(asyncio.run(drive(adapter, measure, int(count)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
