"""What an idle worker costs broker, database and processor."""

import time
from contextlib import ExitStack
from functools import partial
from typing import Literal

from benchmarks import fleets
from benchmarks.apart import apart
from benchmarks.counters import broker_commands, database_counts
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.processes import Worker, cpu_seconds, proportional_megabytes, resident_megabytes
from benchmarks.raw_celery import CONCURRENCY
from benchmarks.scene import Scene

SETTLE_SECONDS = 20.0
"""Beyond a lease, so that what a worker loads and searches once after its start is behind it."""


def ours(lane: Literal["async", "process"], scene: Scene) -> Readings:
    with ExitStack() as cleanup:
        name = f"idle-{lane}"
        settings = cleanup.enter_context(apart(scene, name))
        options = () if lane == "async" else ("--concurrency", str(CONCURRENCY))
        worker = fleets.ours(name, scene.folder, settings, "--lane", lane, *options)
        return _watch(scene, worker, settings.broker_url, settings.database_url, cleanup)


def raw(scene: Scene) -> Readings:
    with ExitStack() as cleanup:
        settings = cleanup.enter_context(apart(scene, "idle-raw"))
        worker = fleets.raw("idle-raw", scene.folder, settings.broker_url, settings.broker_url)
        return _watch(scene, worker, settings.broker_url, settings.database_url, cleanup)


def _watch(scene: Scene, worker: Worker, broker: str, database: str, cleanup: ExitStack) -> Readings:
    cleanup.callback(worker.stop)
    worker.wait_ready()
    time.sleep(SETTLE_SECONDS)

    def counts() -> dict[str, float]:
        statements = database_counts(scene, database)["statements"]
        return {"statements": statements, "commands": broker_commands(broker), "cpu": cpu_seconds([worker.pid]) * 100}

    before, started = counts(), time.perf_counter()
    time.sleep(scene.sizes.idle_seconds)
    after, seconds = counts(), time.perf_counter() - started
    rates = {name: (after[name] - before[name]) / seconds for name in after}
    return {**rates, "resident": resident_megabytes(worker.pid), "proportional": proportional_megabytes(worker.pid)}


def _cost(lane: Literal["async", "process"]) -> list[Row]:
    return [
        Row(
            title=f"idle {lane} worker: broker commands",
            unit="/s",
            key="commands",
            ours=lane,
            raw="raw",
            bar=Bar("value", "at most", 2),
        ),
        Row(
            title=f"idle {lane} worker: SQL statements",
            unit="/s",
            key="statements",
            ours=lane,
            bar=Bar("value", "at most", 1),
        ),
        Row(
            title=f"idle {lane} worker: part of a core",
            unit="%",
            key="cpu",
            ours=lane,
            raw="raw",
            bar=Bar("value", "at most", 0.5),
        ),
    ]


MEASURE = Measure(
    name="idle",
    needs=frozenset({"servers"}),
    rounds_at_most=1,
    sides={"raw": raw, "async": partial(ours, "async"), "process": partial(ours, "process")},
    rows=[
        *_cost("async"),
        *_cost("process"),
        Row(
            title="idle async worker, resident",
            unit="MB",
            key="resident",
            ours="async",
            bar=Bar("value", "at most", 110),
        ),
        Row(
            title="idle process worker with 2 children, proportional",
            unit="MB",
            key="proportional",
            ours="process",
            raw="raw",
            bar=Bar("value", "at most", 130),
        ),
    ],
)
