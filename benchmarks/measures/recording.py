"""What recording costs: bursts through client and workers with the real tables, and with a queue that records nothing."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack

from benchmarks import bare_queue, fleets
from benchmarks.apart import apart
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.measures.burst import bursts_by_turns
from benchmarks.meter import PARTIES, Meter
from benchmarks.processes import Worker
from benchmarks.scene import Scene
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings

CREW, SLOTS = 2, 1_000
TURNS = 10
BARE = ("-m", "benchmarks.bare_worker")


def bursts(scene: Scene) -> Readings:
    """Run both in turns, so that a disturbance affects both. The audit chain is written later and belongs to neither."""
    with ExitStack() as cleanup:
        places = {
            name: cleanup.enter_context(apart(scene, f"recording-{name}")).model_copy(update={"audit_interval": 0})
            for name in ("real", "bare")
        }
        bare_queue.make_tables(places["bare"].database_url)
        programs = {"real": fleets.OURS, "bare": BARE}
        crews = {
            name: cleanup.enter_context(
                fleets.crew(scene.folder, place, f"recording-{name}", CREW, SLOTS, programs[name])
            )
            for name, place in places.items()
        }
        return asyncio.run(_turns(scene, places, crews))


async def _turns(scene: Scene, places: Mapping[str, Settings], crews: Mapping[str, list[Worker]]) -> Readings:
    async with AsyncExitStack() as cleanup:
        clients = {"real": await cleanup.enter_async_context(ExecutorClient(places["real"]))}
        with bare_queue.swapped():
            clients["bare"] = await cleanup.enter_async_context(ExecutorClient(places["bare"]))

        def meter(name: str) -> Meter:
            return Meter(scene, [worker.pid for worker in crews[name]], places[name].database_url)

        return await bursts_by_turns(clients, meter, "NoOp", scene.sizes.burst, TURNS)


MEASURE = Measure(
    name="recording",
    needs=frozenset({"servers", "history"}),
    rounds_at_most=1,
    sides={"ours": bursts},
    rows=[
        Row(
            title="{burst:,} at once, all recorded (a queue of id and payload)",
            unit="/s",
            key="real rate",
            ours="ours",
            raw="ours",
            raw_key="bare rate",
            bar=Bar("ratio", "at least", 0.85),
        ),
        *(
            Row(
                title=f"CPU a call, all recorded (a queue of id and payload): {party}",
                unit="us",
                key=f"real {party}",
                ours="ours",
                raw="ours",
                raw_key=f"bare {party}",
            )
            for party in PARTIES
        ),
        *(
            Row(
                title=f"{what} a call, all recorded (a queue of id and payload)",
                unit="",
                key=f"real {what}",
                ours="ours",
                raw="ours",
                raw_key=f"bare {what}",
            )
            for what in ("statements", "commits")
        ),
    ],
)
