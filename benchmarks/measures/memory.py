"""What a worker holds while it waits, and what it still holds after many calls."""

import asyncio
import time

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.processes import Worker
from benchmarks.scene import CONTEXT, Scene, succeeded
from forge_tools.client import ExecutorClient

SETTLE_SECONDS = 3.0
"""A few heartbeats and looks at the queue, so that everything an idle worker ever loads is loaded."""

AT_ONCE = 1_000


def async_worker(scene: Scene) -> Readings:
    worker = scene.start_worker("idle-async", "postgres", "--lane", "async", "--queues", "idle")
    try:
        time.sleep(SETTLE_SECONDS)
        return {"megabytes": worker.resident_megabytes()}
    finally:
        worker.stop()


def after_many_calls(scene: Scene) -> Readings:
    """Growth from the first tenth of the calls, by which every cache has met its limit, to the last."""
    worker = scene.start_worker(
        "busy-async",
        "postgres",
        *("--lane", "async", "--queues", "busy", "--concurrency", str(AT_ONCE)),
        *("--no-builtins", "--tools", "benchmarks.tools:TOOLS"),
    )
    try:
        return asyncio.run(_growth(scene, worker))
    finally:
        worker.stop()


async def _growth(scene: Scene, worker: Worker) -> Readings:
    async with scene.client("postgres") as client:
        warming = scene.sizes.many // 10
        await _run(client, warming)
        before = worker.resident_megabytes()
        await _run(client, scene.sizes.many - warming)
        return {"megabytes": worker.resident_megabytes() - before}


async def _run(client: ExecutorClient, calls: int) -> None:
    for _ in range(0, calls, AT_ONCE):
        for result in await asyncio.gather(
            *(client.call("NoOp", {}, CONTEXT, queue="busy") for _ in range(min(AT_ONCE, calls)))
        ):
            succeeded(result)


MEASURE = Measure(
    name="memory",
    needs=frozenset({"async"}),
    sides={"async": async_worker},
    rows=[
        Row(
            title="idle async worker, resident",
            unit="MB",
            key="megabytes",
            ours="async",
            bar=Bar("value", "at most", 140),
        )
    ],
)

GROWTH = Measure(
    name="growth",
    needs=frozenset({"async"}),
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
