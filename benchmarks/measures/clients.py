"""Several clients at once, each in its own process."""

import asyncio
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from threading import BrokenBarrierError
from typing import Any

from benchmarks.figures import Measure, Readings, Row
from benchmarks.fleets import Ours
from benchmarks.measures.burst import run_at_once
from benchmarks.scene import Scene

CLIENTS = 4
MEETING_SECONDS = 60.0

Span = tuple[float, float]
"""From when to when, by the clock that all processes share."""


def ours(fleet: Ours, scene: Scene) -> Readings:
    return _together(partial(_our_client, fleet), scene, scene.sizes.burst // CLIENTS * scene.sizes.bursts)


def raw(scene: Scene) -> Readings:
    return _together(_raw_client, scene, scene.sizes.burst // CLIENTS)


def _together(client: Any, scene: Scene, calls: int) -> Readings:
    """Run `calls` calls in each client, all starting when the last client is ready."""
    context = get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(CLIENTS, mp_context=context) as pool:
        barrier = manager.Barrier(CLIENTS, timeout=MEETING_SECONDS)
        spans = [one.result() for one in [pool.submit(client, scene, barrier, calls) for _ in range(CLIENTS)]]
    seconds = max(end for _, end in spans) - min(start for start, _ in spans)
    return {"rate": CLIENTS * calls / seconds}


def _our_client(fleet: Ours, scene: Scene, barrier: Any, calls: int) -> Span:
    return asyncio.run(_our_calls(fleet, scene, barrier, calls))


async def _our_calls(fleet: Ours, scene: Scene, barrier: Any, calls: int) -> Span:
    async with scene.client(fleet) as client:
        _meet(barrier)
        started = time.perf_counter()
        for _ in range(scene.sizes.bursts):
            await run_at_once(client, "NoOp", calls // scene.sizes.bursts)
        return started, time.perf_counter()


def _raw_client(scene: Scene, barrier: Any, calls: int) -> Span:
    no_op = scene.raw("raw.no_op")
    _meet(barrier)
    started = time.perf_counter()
    for result in [no_op.delay() for _ in range(calls)]:
        result.get(timeout=300)
    return started, time.perf_counter()


def _meet(barrier: Any) -> None:
    try:
        barrier.wait()
    except BrokenBarrierError as error:
        raise RuntimeError(f"the {CLIENTS} clients did not all come up in {MEETING_SECONDS:.0f} s") from error


MEASURE = Measure(
    name="clients",
    needs=frozenset({"postgres-pair", "raw"}),
    sides={"raw": raw, "postgres": partial(ours, "postgres-pair")},
    rows=[
        Row(
            title=f"{{burst:,}} at once from {CLIENTS} client processes, PostgreSQL",
            unit="/s",
            key="rate",
            ours="postgres",
            raw="raw",
        )
    ],
)
