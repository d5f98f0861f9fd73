"""What a worker holds while it waits."""

import time

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.scene import Scene

SETTLE_SECONDS = 3.0
"""A few heartbeats and looks at the queue, so that everything an idle worker ever loads is loaded."""


def async_worker(scene: Scene) -> Readings:
    worker = scene.start_worker("idle-async", "postgres", "--lane", "async", "--queues", "idle")
    try:
        time.sleep(SETTLE_SECONDS)
        return {"megabytes": worker.resident_megabytes()}
    finally:
        worker.stop()


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
