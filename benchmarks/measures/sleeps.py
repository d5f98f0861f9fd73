"""Calls that only wait: how many of them one async worker holds at a time."""

import asyncio
import time
from functools import partial

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.scene import CONTEXT, Database, Scene, succeeded

SECONDS = 0.2
BAR = Bar("value", "at most", 0.6)


def ours(database: Database, scene: Scene) -> Readings:
    return asyncio.run(_ours(database, scene))


async def _ours(database: Database, scene: Scene) -> Readings:
    async with scene.client(database) as client:
        started = time.perf_counter()
        calls = (client.execute("Sleep", CONTEXT, seconds=SECONDS) for _ in range(scene.sizes.sleeps))
        results = await asyncio.gather(*calls)
        seconds = time.perf_counter() - started
    for result in results:
        succeeded(result)
    return {"seconds": seconds}


def raw(scene: Scene) -> Readings:
    """A few calls, and their time scaled: all of them would wait for minutes to say the same."""
    sleep = scene.raw("raw.sleep")
    started = time.perf_counter()
    for result in [sleep.delay(SECONDS) for _ in range(scene.sizes.raw_sleeps)]:
        result.get(timeout=300)
    seconds = time.perf_counter() - started
    return {"seconds": seconds * scene.sizes.sleeps / scene.sizes.raw_sleeps}


MEASURE = Measure(
    name="sleeps",
    needs=frozenset({"async", "raw"}),
    sides={"raw": raw, "sqlite": partial(ours, "sqlite"), "postgres": partial(ours, "postgres")},
    rows=[
        Row(
            title="{sleeps:,} x sleep(0.2), SQLite",
            unit="s",
            key="seconds",
            ours="sqlite",
            raw="raw",
            bar=BAR,
        ),
        Row(
            title="{sleeps:,} x sleep(0.2), PostgreSQL",
            unit="s",
            key="seconds",
            ours="postgres",
            raw="raw",
            bar=BAR,
        ),
    ],
)
