"""What a worker still holds after many calls."""

import asyncio

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.measures.burst import run_at_once
from benchmarks.processes import resident_megabytes
from benchmarks.scene import Scene
from forge_tools.client import ExecutorClient

AT_ONCE = 1_000


def after_many_calls(scene: Scene) -> Readings:
    """Growth from the first tenth of the calls, by which every cache has met its limit, to the last."""
    return asyncio.run(_growth(scene))


async def _growth(scene: Scene) -> Readings:
    (worker,) = scene.pids("postgres-solo")
    async with scene.client("postgres-solo") as client:
        warming = scene.sizes.many // 10
        await _run(client, warming)
        before = resident_megabytes(worker)
        await _run(client, scene.sizes.many - warming)
        return {"megabytes": resident_megabytes(worker) - before}


async def _run(client: ExecutorClient, calls: int) -> None:
    for _ in range(0, calls, AT_ONCE):
        await run_at_once(client, "NoOp", min(AT_ONCE, calls))


MEASURE = Measure(
    name="memory",
    needs=frozenset({"postgres-solo"}),
    rounds_at_most=1,
    sides={"async": after_many_calls},
    rows=[
        Row(
            title="async worker, growth over {many:,} calls",
            unit="MB",
            key="megabytes",
            ours="async",
            bar=Bar("value", "at most", 20),
        )
    ],
)
