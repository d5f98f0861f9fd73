"""Many calls at once, from submit to result: how fast they are, and what a call costs each process."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.fleets import Ours
from benchmarks.meter import Meter, split
from benchmarks.scene import CONTEXT, Scene, succeeded
from forge_tools.client import ExecutorClient


def burst(fleet: Ours, scene: Scene) -> Readings:
    return asyncio.run(_burst(fleet, scene))


async def _burst(fleet: Ours, scene: Scene) -> Readings:
    async with scene.client(fleet) as client:
        await run_at_once(client, "NoOp", scene.sizes.burst // 10)
        meter = Meter.of(scene, fleet)
        for _ in range(scene.sizes.bursts):
            await run_at_once(client, "NoOp", scene.sizes.burst)
        return meter.read(scene.sizes.burst * scene.sizes.bursts)


async def run_at_once(client: ExecutorClient, tool: str, calls: int, **parameters: object) -> None:
    for result in await asyncio.gather(*(client.execute(tool, CONTEXT, **parameters) for _ in range(calls))):
        succeeded(result)


async def bursts_by_turns(
    clients: Mapping[str, ExecutorClient], meter: Callable[[str], Meter], tool: str, calls: int, turns: int
) -> Readings:
    """Run a burst of each client in turn, repeatedly; return the median of everything that `meter` reads, as `NAME KEY`."""
    for client in clients.values():
        await run_at_once(client, tool, calls)
    reads: dict[str, list[Readings]] = {name: [] for name in clients}
    for number in range(turns):
        for name in sorted(clients, reverse=bool(number % 2)):
            metered = meter(name)
            await run_at_once(clients[name], tool, calls)
            reads[name].append(metered.read(calls))
    return {f"{name} {key}": median(one[key] for one in read) for name, read in reads.items() for key in read[0]}


def raw_burst(scene: Scene) -> Readings:
    no_op, calls = scene.raw("raw.no_op"), scene.sizes.burst
    meter = Meter.of(scene, "raw")
    for result in [no_op.delay() for _ in range(calls)]:
        result.get(timeout=300)
    return meter.read(calls)


MEASURE = Measure(
    name="burst",
    needs=frozenset({"postgres-pair", "sqlite-pair", "raw"}),
    sides={"raw": raw_burst, "sqlite": partial(burst, "sqlite-pair"), "postgres": partial(burst, "postgres-pair")},
    rows=[
        Row(
            title="{burst:,} at once, 2 worker processes, PostgreSQL",
            unit="/s",
            key="rate",
            ours="postgres",
            raw="raw",
            bar=Bar("ratio", "at least", 30),
        ),
        Row(title="{burst:,} at once, 2 worker processes, SQLite", unit="/s", key="rate", ours="sqlite", raw="raw"),
        Row(
            title="CPU a call, PostgreSQL: client, workers, database",
            unit="us",
            key="cpu",
            ours="postgres",
            raw="raw",
            bar=Bar("value", "at most", 150),
        ),
        *split("PostgreSQL", "postgres", "raw"),
        Row(title="statements a call, PostgreSQL", unit="", key="statements", ours="postgres"),
        Row(title="commits a call, PostgreSQL", unit="", key="commits", ours="postgres"),
        Row(title="broker commands a call, PostgreSQL", unit="", key="commands", ours="postgres", raw="raw"),
        Row(title="CPU a call, SQLite: client, workers", unit="us", key="cpu", ours="sqlite", raw="raw"),
    ],
)
