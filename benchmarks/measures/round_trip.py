"""One call at a time: submit, run, result."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from statistics import quantiles

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.fleets import Ours
from benchmarks.meter import Meter, split
from benchmarks.scene import CONTEXT, Scene, succeeded


def ours(fleet: Ours, scene: Scene) -> Readings:
    return asyncio.run(_ours(fleet, scene))


async def _ours(fleet: Ours, scene: Scene) -> Readings:
    times = []
    async with scene.client(fleet) as client:
        meter = Meter.of(scene, fleet)
        for _ in range(scene.sizes.round_trips):
            started = time.perf_counter()
            succeeded(await client.execute("NoOp", CONTEXT))
            times.append(time.perf_counter() - started)
        return {**meter.read(len(times)), **_percentiles(times)}


def raw(scene: Scene) -> Readings:
    times = []
    no_op, meter = scene.raw("raw.no_op"), Meter.of(scene, "raw")
    for _ in range(scene.sizes.round_trips):
        started = time.perf_counter()
        no_op.delay().get(timeout=60)
        times.append(time.perf_counter() - started)
    return {**meter.read(len(times)), **_percentiles(times)}


def _percentiles(seconds: Sequence[float]) -> Readings:
    cuts = quantiles(seconds, n=100)
    return {"p50": cuts[49] * 1000, "p99": cuts[98] * 1000}


MEASURE = Measure(
    name="round-trip",
    needs=frozenset({"postgres-pair", "postgres-solo", "sqlite-pair", "raw"}),
    sides={
        "raw": raw,
        "sqlite": partial(ours, "sqlite-pair"),
        "postgres": partial(ours, "postgres-pair"),
        "solo": partial(ours, "postgres-solo"),
    },
    rows=[
        Row(
            title="round trip p50, PostgreSQL",
            unit="ms",
            key="p50",
            ours="postgres",
            raw="raw",
            bar=Bar("ratio", "at most", 1),
        ),
        Row(
            title="round trip p99, PostgreSQL",
            unit="ms",
            key="p99",
            ours="postgres",
            raw="raw",
            bar=Bar("ratio", "at most", 2),
        ),
        Row(title="round trip p50, PostgreSQL, 1 worker process", unit="ms", key="p50", ours="solo", raw="raw"),
        Row(title="round trip p99, PostgreSQL, 1 worker process", unit="ms", key="p99", ours="solo", raw="raw"),
        *split("one at a time, PostgreSQL, 1 worker process", "solo", "raw"),
        Row(title="statements a call, one at a time, PostgreSQL", unit="", key="statements", ours="solo"),
        Row(title="round trip p50, SQLite", unit="ms", key="p50", ours="sqlite", raw="raw"),
        Row(title="round trip p99, SQLite", unit="ms", key="p99", ours="sqlite", raw="raw"),
    ],
)
