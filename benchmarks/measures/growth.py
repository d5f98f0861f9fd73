"""Costs as work grows: larger bursts, fuller tables, more worker processes. These take minutes, and run when named."""

import asyncio
import sys
import time
from contextlib import AbstractContextManager, ExitStack
from statistics import median

from benchmarks import fleets
from benchmarks.apart import apart
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.filling import fill
from benchmarks.measures.burst import run_at_once
from benchmarks.meter import Meter
from benchmarks.plans import Plans, changes, plans_of, scans
from benchmarks.processes import Worker
from benchmarks.scene import CONTEXT, Scene, succeeded
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings

FLAT = Bar("ratio", "at most", 1.15)
TURNS = 3
CREW = 2
SLOTS = 1_000
WAITING_SLOTS = 50
WAITS = 25
SECONDS = 0.2
PROCESSES = (1, 2, 4)


def bursts(scene: Scene) -> Readings:
    """The same number of calls in each, in bursts of growing size."""
    return asyncio.run(_bursts(scene))


async def _bursts(scene: Scene) -> Readings:
    sizes = scene.sizes
    readings: dict[str, float] = {}
    async with scene.client("postgres-pair") as client:
        await run_at_once(client, "NoOp", sizes.small_burst)
        for name, calls in (("small", sizes.small_burst), ("large", sizes.large_burst), ("huge", sizes.huge_burst)):
            times = max(sizes.large_burst // calls, 1)
            meter = Meter.of(scene, "postgres-pair")
            for _ in range(times):
                await run_at_once(client, "NoOp", calls)
            read = meter.read(calls * times)
            readings |= {f"{name} each": read["each"], f"{name} cpu": read["cpu"]}
    return readings


def tables(scene: Scene) -> Readings:
    """Bursts and single calls on an empty and on a full database, in turns, and the plans of both."""
    with ExitStack() as cleanup:
        places = {name: cleanup.enter_context(apart(scene, f"growth-{name}")) for name in ("empty", "full")}
        with _crew(scene, places["full"], "filling", 1):
            fill(places["full"], scene.sizes.full_tables)
        used = {name: _plans(scene, settings) for name, settings in places.items()}
        crews = {name: cleanup.enter_context(_crew(scene, place, name, CREW)) for name, place in places.items()}
        turns: list[Readings] = []
        for _ in range(TURNS):
            reads = {name: asyncio.run(_turn(scene, places[name], crews[name])) for name in places}
            turns.append({f"{name} {key}": value for name, read in reads.items() for key, value in read.items()})
    middle = {key: median(turn[key] for turn in turns) for key in turns[0]}
    return {**middle, **_compared(used["empty"], used["full"])}


async def _turn(scene: Scene, settings: Settings, crew: list[Worker]) -> Readings:
    async with ExecutorClient(settings) as client:
        await run_at_once(client, "NoOp", scene.sizes.burst // 10)
        meter = Meter(scene, [worker.pid for worker in crew], settings.database_url)
        await run_at_once(client, "NoOp", scene.sizes.burst)
        read = meter.read(scene.sizes.burst)
        times = []
        for _ in range(scene.sizes.round_trips // TURNS):
            started = time.perf_counter()
            succeeded(await client.execute("NoOp", CONTEXT))
            times.append(time.perf_counter() - started)
    return {"each": read["each"], "cpu": read["cpu"], "database": read["database"], "p50": median(times) * 1000}


def _plans(scene: Scene, settings: Settings) -> Plans:
    def work() -> None:
        with _crew(scene, settings, "planning", 1):
            asyncio.run(_calls(scene, settings))

    return plans_of(scene, settings.database_url, work)


async def _calls(scene: Scene, settings: Settings) -> None:
    async with ExecutorClient(settings) as client:
        await run_at_once(client, "NoOp", scene.sizes.small_burst)
        succeeded(await client.execute("NoOp", CONTEXT))


def _compared(empty: Plans, full: Plans) -> Readings:
    if not full:
        raise RuntimeError("PostgreSQL told no plan: its log has no entry of auto_explain")
    changed, reading_all = changes(empty, full), scans(full)
    for statement in changed:
        print(
            f"another plan once the tables are full: {statement[:150]}", *full[statement], sep="\n  ", file=sys.stderr
        )
    for statement in reading_all:
        print(f"reads all of a growing table: {statement[:150]}", *full[statement], sep="\n  ", file=sys.stderr)
    return {"statements": len(full), "changed": len(changed), "scans": len(reading_all)}


def processes(scene: Scene) -> Readings:
    """The same load for each process: tools that wait, and no-ops."""
    readings: dict[str, float] = {}
    for number in PROCESSES:
        name = f"growth-{number}"
        with apart(scene, name) as settings:
            with _crew(scene, settings, f"waiting-{number}", number, WAITING_SLOTS):
                readings[f"waiting {number}"] = asyncio.run(_waiting(settings, number * WAITING_SLOTS))
            with _crew(scene, settings, f"burst-{number}", number) as crew:
                readings[f"cpu {number}"] = asyncio.run(_turn(scene, settings, crew))["cpu"]
    speeds = {f"speed-up {n}": readings[f"waiting {n}"] / readings["waiting 1"] / n for n in PROCESSES[1:]}
    return {**readings, **speeds}


async def _waiting(settings: Settings, slots: int) -> float:
    async with ExecutorClient(settings) as client:
        await _wait(client, slots)
        started = time.perf_counter()
        await _wait(client, slots * WAITS)
        return slots * WAITS / (time.perf_counter() - started)


async def _wait(client: ExecutorClient, calls: int) -> None:
    for result in await asyncio.gather(*(client.execute("Sleep", CONTEXT, seconds=SECONDS) for _ in range(calls))):
        succeeded(result)


def _crew(
    scene: Scene, settings: Settings, name: str, number: int, slots: int = SLOTS
) -> AbstractContextManager[list[Worker]]:
    return fleets.crew(scene.folder, settings, name, number, slots)


BURSTS = Measure(
    name="growth-bursts",
    needs=frozenset({"postgres-pair"}),
    sides={"ours": bursts},
    rows=[
        Row(
            title=f"{what} a call, {{{size}_burst:,}} at once ({{small_burst:,}} at once)",
            unit="us",
            key=f"{size} {key}",
            ours="ours",
            raw="ours",
            raw_key=f"small {key}",
            bar=FLAT,
        )
        for size in ("large", "huge")
        for what, key in (("time", "each"), ("CPU", "cpu"))
    ],
)

TABLES = Measure(
    name="growth-tables",
    needs=frozenset({"servers"}),
    rounds_at_most=1,
    sides={"ours": tables},
    rows=[
        *(
            Row(
                title=f"{what}, {{full_tables:,}} over and {{full_tables:,}} waiting (empty)",
                unit=unit,
                key=f"full {key}",
                ours="ours",
                raw="ours",
                raw_key=f"empty {key}",
                bar=FLAT,
            )
            for what, unit, key in (
                ("time a call", "us", "each"),
                ("CPU a call", "us", "cpu"),
                ("CPU a call, database", "us", "database"),
                ("round trip p50", "ms", "p50"),
            )
        ),
        Row(title="statements whose plan was seen", unit="", key="statements", ours="ours"),
        Row(title="of these, with another plan than on empty tables", unit="", key="changed", ours="ours"),
        Row(
            title="of these, reading all of a growing table",
            unit="",
            key="scans",
            ours="ours",
            bar=Bar("value", "at most", 0),
        ),
    ],
)

PROCESS_COUNTS = Measure(
    name="growth-processes",
    needs=frozenset({"servers"}),
    sides={"ours": processes},
    rows=[
        *(
            Row(
                title=f"{number} worker processes: speed-up of calls that wait, as part of {number}x",
                unit="",
                key=f"speed-up {number}",
                ours="ours",
                bar=Bar("value", "at least", 0.9),
            )
            for number in PROCESSES[1:]
        ),
        *(
            Row(
                title=f"{number} worker processes: CPU a call (1 process)",
                unit="us",
                key=f"cpu {number}",
                ours="ours",
                raw="ours",
                raw_key="cpu 1",
                bar=FLAT,
            )
            for number in PROCESSES[1:]
        ),
    ],
)
