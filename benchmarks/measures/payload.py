"""Calls that carry much: parameters and results of growing size, beside raw Celery with the same."""

import asyncio
import time
from functools import partial
from typing import Any

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.fleets import Ours
from benchmarks.scene import CONTEXT, Scene, succeeded
from forge_tools.client import ExecutorClient

MEGABYTE = 1_000_000
SIZES = {"1 kB": 1_000, "100 kB": 100_000, "1 MB": MEGABYTE}
ROOMY = CONTEXT.model_copy(update={"max_output_size": 2 * MEGABYTE})
"""Nothing of these results is cut."""


def ours(fleet: Ours, scene: Scene) -> Readings:
    return asyncio.run(_ours(fleet, scene))


async def _ours(fleet: Ours, scene: Scene) -> Readings:
    calls = scene.sizes.payloads
    readings = {}
    async with scene.client(fleet) as client:
        for name, size in SIZES.items():
            readings[f"parameter {name}"] = await _rate(client, calls, "Swallow", text="x" * size)
            readings[f"result {name}"] = await _rate(client, calls, "Produce", size=size)
    return readings


async def _rate(client: ExecutorClient, calls: int, tool: str, **parameters: Any) -> float:
    started = time.perf_counter()
    results = await asyncio.gather(*(client.execute(tool, ROOMY, **parameters) for _ in range(calls)))
    seconds = time.perf_counter() - started
    for result in results:
        succeeded(result)
        if tool == "Produce" and len(str(result.output)) != parameters["size"]:
            raise RuntimeError(f"a result of {parameters['size']:,} characters came with {len(str(result.output)):,}")
    return calls / seconds


def raw(scene: Scene) -> Readings:
    swallow = scene.raw("raw.swallow")
    produce = swallow.app.tasks["raw.produce"]
    readings = {}
    for name, size in SIZES.items():
        readings[f"parameter {name}"] = _raw_rate(scene, swallow, "x" * size)
        readings[f"result {name}"] = _raw_rate(scene, produce, size)
    return readings


def _raw_rate(scene: Scene, task: Any, argument: object) -> float:
    calls = scene.sizes.payloads
    started = time.perf_counter()
    for result in [task.delay(argument) for _ in range(calls)]:
        result.get(timeout=300)
    return calls / (time.perf_counter() - started)


MEASURE = Measure(
    name="payload",
    needs=frozenset({"postgres-pair", "raw"}),
    sides={"raw": raw, "postgres": partial(ours, "postgres-pair")},
    rows=[
        Row(
            title=f"{{payloads}} at once, each with a {what} of {size}, PostgreSQL",
            unit="/s",
            key=f"{what} {size}",
            ours="postgres",
            raw="raw",
            bar=Bar("ratio", "at least", 1) if size == "1 MB" else None,
        )
        for what in ("parameter", "result")
        for size in SIZES
    ],
)
