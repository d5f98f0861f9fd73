"""Calls beside a long history, compared with none, and during a prune of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from multiprocessing import get_context
from statistics import median
from typing import Any

from benchmarks import fleets
from benchmarks.apart import apart
from benchmarks.counters import in_database
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.long_history import LongHistory, renew
from benchmarks.measures.burst import run_at_once
from benchmarks.meter import Meter
from benchmarks.processes import Worker
from benchmarks.scene import CONTEXT, Scene, succeeded
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.model import new_id
from forge_tools.model.audit import Pruning
from forge_tools.model.execution import id_floor
from forge_tools.storage import open_store
from forge_tools.storage.retention import PruneRun

CREW, SLOTS = 2, 1_000
TURNS = 9
TOGETHER = 500
"""Calls under way at a time beside a prune."""

OUTPUT = 130
"""Characters that a call puts out, as many as those of the history did.

Rows that are smaller than those of the bulk load first fill the room that is left at the end of its pages: each a page of its own,
which is read and logged whole. That goes on for as many calls as there are pages, and says nothing of a long history.
"""

OLD = "SELECT count(*) FROM executions WHERE id < $1::uuid"


def full_and_empty(scene: Scene) -> Readings:
    """Run bursts on the long history and on none, in turns. The audit chain is off: it would still be catching up with the load."""
    with ExitStack() as cleanup:
        places = {
            "full": _unsealed(scene.past["postgres"]),
            "empty": _unsealed(cleanup.enter_context(apart(scene, "empty"))),
        }
        crews = {
            name: cleanup.enter_context(fleets.crew(scene.folder, place, f"history-{name}", CREW, SLOTS))
            for name, place in places.items()
        }
        return asyncio.run(_turns(scene, places, crews))


async def _turns(scene: Scene, places: Mapping[str, Settings], crews: Mapping[str, list[Worker]]) -> Readings:
    async with AsyncExitStack() as cleanup:
        clients = {name: await cleanup.enter_async_context(ExecutorClient(place)) for name, place in places.items()}
        for client in clients.values():
            await run_at_once(client, "Produce", scene.sizes.burst, size=OUTPUT)
        turns: dict[str, list[Readings]] = {name: [] for name in clients}
        for number in range(TURNS):
            for name in sorted(clients, reverse=bool(number % 2)):
                meter = Meter(scene, [worker.pid for worker in crews[name]], places[name].database_url)
                await run_at_once(clients[name], "Produce", scene.sizes.burst, size=OUTPUT)
                turns[name].append(meter.read(scene.sizes.burst))
    return {f"{name} {key}": median(turn[key] for turn in reads) for name, reads in turns.items() for key in reads[0]}


def beside_a_prune(scene: Scene) -> Readings:
    """Make steady calls in equal spans of time, with and without a prune of the oldest rows running."""
    long = scene.long
    assert long is not None
    settings = _unsealed(scene.past["postgres"])
    if _old(settings.database_url, long) < long.old / 2:
        renew(scene.administration, long)
    with (
        fleets.crew(scene.folder, settings, "beside-a-prune", CREW, SLOTS),
        _pruner(settings.database_url, long) as prune,
    ):
        return asyncio.run(_spans(scene, settings, prune))


async def _spans(scene: Scene, settings: Settings, prune: "_Prune") -> Readings:
    rates: dict[bool, list[float]] = {True: [], False: []}
    async with ExecutorClient(settings) as client, _traffic(client) as counted:
        await asyncio.sleep(scene.sizes.prune_seconds)
        for number in range(scene.sizes.prunings):
            for is_pruning in (True, False) if number % 2 else (False, True):
                await prune.set(is_pruning)
                before, started = counted[0], time.perf_counter()
                await asyncio.sleep(scene.sizes.prune_seconds)
                rates[is_pruning].append((counted[0] - before) / (time.perf_counter() - started))
        await prune.set(False)
    pruned = prune.gone.value / (scene.sizes.prunings * scene.sizes.prune_seconds)
    return {"with": median(rates[True]), "without": median(rates[False]), "pruned": pruned}


@asynccontextmanager
async def _traffic(client: ExecutorClient) -> AsyncIterator[list[int]]:
    """Make calls endlessly, so many at a time; yield the counter of those that ended."""
    counted = [0]

    async def call() -> None:
        while True:
            succeeded(await client.execute("NoOp", CONTEXT))
            counted[0] += 1

    calls = asyncio.gather(*(call() for _ in range(TOGETHER)))
    try:
        yield counted
    finally:
        if calls.done():
            calls.result()  # a call that failed ends them all, and the measure
        calls.cancel()
        await asyncio.gather(calls, return_exceptions=True)


class _Prune:
    """A prune in its own process, which runs and pauses on command."""

    def __init__(self) -> None:
        spawning = get_context("spawn")
        self.go, self.resting, self.gone = spawning.Event(), spawning.Event(), spawning.Value("q", 0)

    async def set(self, is_pruning: bool) -> None:
        """Wait for the current transaction, so that none extends into a span without a prune."""
        if is_pruning:
            self.resting.clear()
            self.go.set()
            return
        self.go.clear()
        while not self.resting.is_set():
            await asyncio.sleep(0.01)


@contextmanager
def _pruner(url: str, long: LongHistory) -> Any:
    prune = _Prune()
    process = get_context("spawn").Process(target=_run_prune, args=(url, long, prune.go, prune.resting, prune.gone))
    process.start()
    try:
        if not prune.resting.wait(60):
            raise RuntimeError("The process that prunes did not start")
        yield prune
    finally:
        process.terminate()
        process.join()


def _run_prune(url: str, long: LongHistory, go: Any, resting: Any, gone: Any) -> None:
    """What `forge-tools prune` does, transaction by transaction."""

    async def run() -> None:
        what = Pruning(ended_before=long.moment(long.old))
        async with await open_store(url) as store:
            _wait(go, resting)
            async for one in store.retention.sweep(what, PruneRun(new_id(), "benchmark")):
                gone.value += one.executions
                _wait(go, resting)
        raise RuntimeError("nothing is left to prune")

    asyncio.run(run())


def _wait(go: Any, resting: Any) -> None:
    if not go.is_set():
        resting.set()
        go.wait()


def _old(url: str, long: LongHistory) -> int:
    async def read(connection: Any) -> int:
        return int(await connection.fetchval(OLD, id_floor(long.moment(long.old).timestamp())))

    return in_database(url, read)


def _unsealed(settings: Settings) -> Settings:
    return settings.model_copy(update={"audit_interval": 0})


FULL = Measure(
    name="history-full",
    needs=frozenset({"servers", "history"}),
    rounds_at_most=1,
    sides={"ours": full_and_empty},
    rows=[
        Row(
            title="{burst:,} at once, submitted, claimed and finished, beside {history:,} rows (none)",
            unit="/s",
            key="full rate",
            ours="ours",
            raw="ours",
            raw_key="empty rate",
            bar=Bar("ratio", "at least", 0.9),
        ),
        *(
            Row(
                title=f"CPU a call, beside {{history:,}} rows (none){who}",
                unit="us",
                key=f"full {key}",
                ours="ours",
                raw="ours",
                raw_key=f"empty {key}",
            )
            for who, key in (("", "cpu"), (": database", "database"))
        ),
    ],
)

PRUNE = Measure(
    name="prune",
    needs=frozenset({"servers", "history"}),
    rounds_at_most=1,
    sides={"ours": beside_a_prune},
    rows=[
        Row(
            title="calls, {old_history:,} old ones being pruned meanwhile (no prune)",
            unit="/s",
            key="with",
            ours="ours",
            raw="ours",
            raw_key="without",
            bar=Bar("ratio", "at least", 0.9),
        ),
        Row(title="pruned beside them", unit="/s", key="pruned", ours="ours"),
    ],
)
