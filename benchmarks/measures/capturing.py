"""What capturing of prints and logs costs if bodies print nothing, compared with workers that do not capture."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from functools import partial

from benchmarks import fleets, raw_celery
from benchmarks.apart import apart
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.measures.burst import bursts_by_turns
from benchmarks.meter import Meter
from benchmarks.scene import Scene
from forge_tools.client import ExecutorClient
from forge_tools.model import Lane

TURNS = 10
PROGRAMS = {"heard": fleets.OURS, "mute": ("-P", "-m", "benchmarks.mute_worker")}
TOOLS: Mapping[Lane, tuple[str, int, int]] = {
    "async": ("NoOp", 1_000, 1),
    "process": ("NoOpProcess", raw_celery.CONCURRENCY, 4),
}
"""Of each lane: the tool, how many run at once, and how many times fewer calls are enough."""


def bursts(lane: Lane, scene: Scene) -> Readings:
    """Run both in turns, so that a disturbance affects both."""
    return asyncio.run(_bursts(lane, scene))


async def _bursts(lane: Lane, scene: Scene) -> Readings:
    tool, slots, fewer = TOOLS[lane]
    with ExitStack() as cleanup:
        places = {name: cleanup.enter_context(apart(scene, f"{lane}-{name}")) for name in PROGRAMS}
        crews = {
            name: cleanup.enter_context(
                fleets.crew(scene.folder, places[name], f"{lane}-{name}", 1, slots, program, lane=lane)
            )
            for name, program in PROGRAMS.items()
        }

        def meter(name: str) -> Meter:
            return Meter(scene, [worker.pid for worker in crews[name]], places[name].database_url)

        async with AsyncExitStack() as clients:
            asked = {name: await clients.enter_async_context(ExecutorClient(place)) for name, place in places.items()}
            return await bursts_by_turns(asked, meter, tool, scene.sizes.burst // fewer, TURNS)


MEASURE = Measure(
    name="capturing",
    needs=frozenset({"servers"}),
    sides={lane: partial(bursts, lane) for lane in TOOLS},
    rows=[
        Row(
            title=f"CPU a call that prints nothing, {lane} lane, workers (output not captured)",
            unit="us",
            key="heard workers",
            ours=lane,
            raw=lane,
            raw_key="mute workers",
            bar=Bar("ratio", "at most", 1.03),
        )
        for lane in TOOLS
    ],
)
