"""One call at a time: submit, run, result."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from statistics import quantiles

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.scene import CONTEXT, Database, Scene, succeeded

BAR = Bar("ratio", "at most", 3)


def ours(database: Database, scene: Scene) -> Readings:
    return asyncio.run(_ours(database, scene))


async def _ours(database: Database, scene: Scene) -> Readings:
    times = []
    async with scene.client(database) as client:
        for _ in range(scene.sizes.round_trips):
            started = time.perf_counter()
            succeeded(await client.execute("NoOp", CONTEXT))
            times.append(time.perf_counter() - started)
    return _percentiles(times)


def raw(scene: Scene) -> Readings:
    times = []
    no_op = scene.raw("raw.no_op")
    for _ in range(scene.sizes.round_trips):
        started = time.perf_counter()
        no_op.delay().get(timeout=60)
        times.append(time.perf_counter() - started)
    return _percentiles(times)


def _percentiles(seconds: Sequence[float]) -> Readings:
    cuts = quantiles(seconds, n=100)
    return {"p50": cuts[49] * 1000, "p99": cuts[98] * 1000}


MEASURE = Measure(
    name="round-trip",
    needs=frozenset({"async", "raw"}),
    sides={"raw": raw, "sqlite": partial(ours, "sqlite"), "postgres": partial(ours, "postgres")},
    rows=[
        Row(title="round trip p50, SQLite", unit="ms", key="p50", ours="sqlite", raw="raw", bar=BAR),
        Row(title="round trip p50, PostgreSQL", unit="ms", key="p50", ours="postgres", raw="raw", bar=BAR),
        Row(title="round trip p99, SQLite", unit="ms", key="p99", ours="sqlite", raw="raw"),
        Row(title="round trip p99, PostgreSQL", unit="ms", key="p99", ours="postgres", raw="raw"),
    ],
)
