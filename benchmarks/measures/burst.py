"""Many calls at once: the whole way, only the way in, and through the process lane."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.scene import CONTEXT, Database, Needs, Scene, succeeded
from forge_tools.client import ExecutorClient


class Meter:
    """Wall time and processor time of everything involved, between two moments."""

    def __init__(self, scene: Scene, side: str, need: Needs) -> None:
        self._used: Callable[[], float] = lambda: time.process_time() + scene.cpu_seconds(side, need)
        self._used_before = self._used()
        self._started = time.perf_counter()

    def read(self, calls: int) -> Readings:
        seconds = time.perf_counter() - self._started
        used = self._used() - self._used_before
        return {"rate": calls / seconds, "each": seconds / calls * 1e6, "cpu": used / calls * 1e6}


def burst(database: Database, scene: Scene) -> Readings:
    return asyncio.run(_all_the_way(scene, database, "async", "NoOp", scene.sizes.burst))


def raw_burst(scene: Scene) -> Readings:
    return _raw(scene, scene.sizes.burst)


def through_processes(database: Database, scene: Scene) -> Readings:
    return asyncio.run(_all_the_way(scene, database, "process", "NoOpProcess", scene.sizes.process_burst))


def raw_through_processes(scene: Scene) -> Readings:
    return _raw(scene, scene.sizes.process_burst)


def submit(database: Database, scene: Scene) -> Readings:
    return asyncio.run(_submit(scene, database))


def raw_submit(scene: Scene) -> Readings:
    no_op, calls = scene.raw("raw.no_op"), scene.sizes.burst
    meter = Meter(scene, "raw", "raw")
    sent = [no_op.delay() for _ in range(calls)]
    readings = meter.read(calls)
    for result in sent:
        result.get(timeout=300)
    return readings


async def _all_the_way(scene: Scene, database: Database, need: Needs, tool: str, calls: int) -> Readings:
    async with scene.client(database) as client:
        await _run(client, tool, 5)
        meter = Meter(scene, database, need)
        await _run(client, tool, calls)
        return meter.read(calls)


async def _run(client: ExecutorClient, tool: str, calls: int) -> None:
    for result in await asyncio.gather(*(client.execute(tool, CONTEXT) for _ in range(calls))):
        succeeded(result)


async def _submit(scene: Scene, database: Database) -> Readings:
    calls = scene.sizes.burst
    async with scene.client(database) as client:
        meter = Meter(scene, database, "async")
        handles = await asyncio.gather(*(client.submit("NoOp", CONTEXT) for _ in range(calls)))
        readings = meter.read(calls)
        for result in await asyncio.gather(*(handle.result(timeout=300) for handle in handles)):
            succeeded(result)
    return readings


def _raw(scene: Scene, calls: int) -> Readings:
    no_op = scene.raw("raw.no_op")
    meter = Meter(scene, "raw", "raw")
    for result in [no_op.delay() for _ in range(calls)]:
        result.get(timeout=300)
    return meter.read(calls)


BURST = Measure(
    name="burst",
    needs=frozenset({"async", "raw"}),
    sides={"raw": raw_burst, "sqlite": partial(burst, "sqlite"), "postgres": partial(burst, "postgres")},
    rows=[
        Row(title="{burst:,} at once, SQLite", unit="/s", key="rate", ours="sqlite", raw="raw"),
        Row(
            title="{burst:,} at once, PostgreSQL",
            unit="/s",
            key="rate",
            ours="postgres",
            raw="raw",
            bar=Bar("ratio", "at least", 5),
        ),
        Row(title="CPU a call, SQLite", unit="us", key="cpu", ours="sqlite", raw="raw"),
        Row(title="CPU a call, PostgreSQL", unit="us", key="cpu", ours="postgres", raw="raw"),
    ],
)

SUBMIT = Measure(
    name="submit",
    needs=frozenset({"async", "raw"}),
    sides={"raw": raw_submit, "sqlite": partial(submit, "sqlite"), "postgres": partial(submit, "postgres")},
    rows=[
        Row(title="submit alone, SQLite", unit="us", key="each", ours="sqlite", raw="raw"),
        Row(title="submit alone, PostgreSQL", unit="us", key="each", ours="postgres", raw="raw"),
    ],
)

PROCESS = Measure(
    name="process",
    needs=frozenset({"async", "process", "raw"}),
    sides={
        "raw": raw_through_processes,
        "sqlite": partial(through_processes, "sqlite"),
        "postgres": partial(through_processes, "postgres"),
    },
    rows=[
        Row(
            title="{process_burst:,} at once, process lane, SQLite",
            unit="/s",
            key="rate",
            ours="sqlite",
            raw="raw",
        ),
        Row(
            title="{process_burst:,} at once, process lane, PostgreSQL",
            unit="/s",
            key="rate",
            ours="postgres",
            raw="raw",
        ),
    ],
)
