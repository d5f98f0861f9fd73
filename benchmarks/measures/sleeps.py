"""Calls that only wait: how many of them one async worker runs at a time."""

import asyncio
import time
from functools import partial

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.fleets import Ours
from benchmarks.meter import Meter, split
from benchmarks.scene import CONTEXT, Scene, succeeded
from forge_tools.client import ExecutorClient

SECONDS = 0.2


def ours(fleet: Ours, scene: Scene) -> Readings:
    return asyncio.run(_ours(fleet, scene))


async def _ours(fleet: Ours, scene: Scene) -> Readings:
    async with scene.client(fleet) as client:
        few = await _time(client, scene.sizes.sleeps)
        meter = Meter.of(scene, fleet)
        many = await _time(client, scene.sizes.many_sleeps)
        return {**meter.read(scene.sizes.many_sleeps), "few": few, "many": many}


async def _time(client: ExecutorClient, calls: int) -> float:
    started = time.perf_counter()
    results = await asyncio.gather(*(client.execute("Sleep", CONTEXT, seconds=SECONDS) for _ in range(calls)))
    seconds = time.perf_counter() - started
    for result in results:
        succeeded(result)
    return seconds


def raw(scene: Scene) -> Readings:
    """Run a few calls and scale their time: all of them would take minutes for the same result."""
    sleep, sizes = scene.raw("raw.sleep"), scene.sizes
    started = time.perf_counter()
    for result in [sleep.delay(SECONDS) for _ in range(sizes.raw_sleeps)]:
        result.get(timeout=300)
    each = (time.perf_counter() - started) / sizes.raw_sleeps
    return {"few": each * sizes.sleeps, "many": each * sizes.many_sleeps}


MEASURE = Measure(
    name="sleeps",
    needs=frozenset({"postgres-solo", "sqlite-solo", "raw"}),
    sides={"raw": raw, "sqlite": partial(ours, "sqlite-solo"), "postgres": partial(ours, "postgres-solo")},
    rows=[
        Row(
            title="{sleeps:,} x sleep(0.2), 1 worker process, PostgreSQL",
            unit="s",
            key="few",
            ours="postgres",
            raw="raw",
            bar=Bar("value", "at most", 0.27),
        ),
        Row(
            title="{many_sleeps:,} x sleep(0.2), 1 worker process, PostgreSQL",
            unit="s",
            key="many",
            ours="postgres",
            raw="raw",
            bar=Bar("value", "at most", 0.9),
        ),
        *split("{many_sleeps:,} x sleep(0.2), 1 worker process, PostgreSQL", "postgres"),
        Row(title="{sleeps:,} x sleep(0.2), 1 worker process, SQLite", unit="s", key="few", ours="sqlite", raw="raw"),
        Row(
            title="{many_sleeps:,} x sleep(0.2), 1 worker process, SQLite",
            unit="s",
            key="many",
            ours="sqlite",
            raw="raw",
        ),
    ],
)
