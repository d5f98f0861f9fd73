"""Many calls at once through child processes, beside Celery's own, which keeps its results in the same PostgreSQL."""

import asyncio
from functools import partial

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.fleets import Ours, Raw
from benchmarks.measures.burst import run_at_once
from benchmarks.meter import Meter, split
from benchmarks.scene import Scene


def ours(fleet: Ours, scene: Scene) -> Readings:
    return asyncio.run(_ours(fleet, scene))


async def _ours(fleet: Ours, scene: Scene) -> Readings:
    async with scene.client(fleet) as client:
        meter = Meter.of(scene, fleet)
        await run_at_once(client, "NoOpProcess", scene.sizes.process_burst)
        return meter.read(scene.sizes.process_burst)


def raw(fleet: Raw, scene: Scene) -> Readings:
    no_op = scene.raw("raw.no_op", fleet)
    meter = Meter.of(scene, fleet)
    for result in [no_op.delay() for _ in range(scene.sizes.process_burst)]:
        result.get(timeout=300)
    return meter.read(scene.sizes.process_burst)


MEASURE = Measure(
    name="process-lane",
    needs=frozenset({"postgres-process", "sqlite-process", "raw", "raw-sql"}),
    sides={
        "raw": partial(raw, "raw"),
        "raw-sql": partial(raw, "raw-sql"),
        "sqlite": partial(ours, "sqlite-process"),
        "postgres": partial(ours, "postgres-process"),
    },
    rows=[
        Row(
            title="{process_burst:,} at once, process lane, PostgreSQL (Celery, results in PostgreSQL)",
            unit="/s",
            key="rate",
            ours="postgres",
            raw="raw-sql",
            bar=Bar("ratio", "at least", 1.5),
        ),
        Row(
            title="{process_burst:,} at once, process lane, PostgreSQL (Celery, results in Valkey)",
            unit="/s",
            key="rate",
            ours="postgres",
            raw="raw",
        ),
        Row(
            title="{process_burst:,} at once, process lane, SQLite (Celery, results in Valkey)",
            unit="/s",
            key="rate",
            ours="sqlite",
            raw="raw",
        ),
        Row(
            title="CPU a call, process lane, PostgreSQL (Celery, results in PostgreSQL)",
            unit="us",
            key="cpu",
            ours="postgres",
            raw="raw-sql",
        ),
        *split("process lane, PostgreSQL", "postgres", "raw-sql"),
    ],
)
