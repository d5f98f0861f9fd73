"""Images and files of results, from a tool to its caller: how long they take beside SQL by hand, and what they hold."""

import asyncio
import filecmp
import os
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import by_hand, fleets
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.fleets import CREWS, Database, Ours
from benchmarks.meter import Meter
from benchmarks.processes import cpu_seconds, forget_peaks, peak_megabytes
from benchmarks.scene import CONTEXT, Scene, succeeded
from benchmarks.tools import noise, picture
from forge_tools.client import ExecutorClient
from forge_tools.model import Lane

FLEETS: dict[tuple[Database, Lane], Ours] = {
    ("sqlite", "async"): "sqlite-solo",
    ("postgres", "async"): "postgres-solo",
    ("sqlite", "process"): "sqlite-process",
    ("postgres", "process"): "postgres-process",
}
NAMES: dict[Database, str] = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
LANES: tuple[Lane, ...] = ("async", "process")
PATIENT = CONTEXT.model_copy(update={"timeout": 1800.0})


def copies(fleet: Ours, scene: Scene) -> Readings:
    """Copy an image both ways in turns, another one each time, since equal bytes are stored once."""
    return asyncio.run(_copies(fleet, scene))


async def _copies(fleet: Ours, scene: Scene) -> Readings:
    size, url = scene.sizes.image_bytes, scene.settings_of(fleet).database_url
    place = str(scene.folder / "by-hand.db") if url.startswith("sqlite") else url
    reads: dict[str, list[Readings]] = {"ours": [], "by hand": []}
    with ProcessPoolExecutor(1, get_context("spawn")) as writer, ThreadPoolExecutor(1) as reader:
        pids = {"ours": scene.pids(fleet), "by hand": [writer.submit(os.getpid).result()]}

        def copy(number: int) -> bytes:
            writer.submit(by_hand.insert, place, size, number).result()
            return by_hand.select(place, number)

        async with scene.client(fleet) as client:
            for turn in range(scene.sizes.image_copies + 1):
                for name in sorted(reads, reverse=bool(turn % 2)):
                    number, meter = time.time_ns(), Meter(scene, pids[name], url)
                    if name == "ours":
                        data = await _image(client, CREWS[fleet].lane, size, number)
                    else:
                        data = await asyncio.get_running_loop().run_in_executor(reader, copy, number)
                    if turn:  # the first makes connections
                        reads[name].append(meter.read(1))
                    if data != picture(size, number):
                        raise RuntimeError(f"{name}: other bytes came than were sent")
    return {
        f"{name} {key}": median(one[key] for one in read) / 1000
        for name, read in reads.items()
        for key in ("each", "cpu", "client", "workers", "database")
    }


async def _image(client: ExecutorClient, lane: Lane, size: int, number: int) -> bytes:
    tool = "Picture" if lane == "async" else "PictureProcess"
    result = await client.execute(tool, CONTEXT, size=size, number=number)
    succeeded(result)
    data: bytes = await result.images[0].bytes()
    return data


def held(database: Database, lane: Lane, scene: Scene) -> Readings:
    """Let a file go from the workspace of a tool into a folder of its caller."""
    return asyncio.run(_held(database, lane, scene))


async def _held(database: Database, lane: Lane, scene: Scene) -> Readings:
    size = scene.sizes.file_bytes
    limits = {"max_part_size": size, "artifact_quota": max(2 * size, 1 << 30)}
    settings = scene.settings[database].model_copy(update=limits)
    with fleets.crew(scene.folder, settings, f"held-{database}-{lane}", 1, 2, lane=lane):
        async with ExecutorClient(settings) as client:
            await _deliver(client, lane, settings.workspace, 3_000_000)  # loads everything
            client_pid = os.getpid()  # the parent of the worker
            forget_peaks(client_pid)
            before, used, started = peak_megabytes(client_pid), cpu_seconds([client_pid]), time.perf_counter()
            await _deliver(client, lane, settings.workspace, size)
            took = {"seconds": time.perf_counter() - started, "cpu": cpu_seconds([client_pid]) - used}
            grown = {pid: peak - before.get(pid, 0.0) for pid, peak in peak_megabytes(client_pid).items()}
    return {"client": grown.pop(client_pid), "worker": max(grown.values()), **took}


async def _deliver(client: ExecutorClient, lane: Lane, workspace: Path, size: int) -> None:
    tool = "Deliver" if lane == "async" else "DeliverProcess"
    with TemporaryDirectory(dir=workspace) as folder:
        sent = Path(folder, "sent.bin")
        with sent.open("wb") as file:
            for number in range(size // len(noise())):
                file.write(noise()[number % len(noise()) :] + noise()[: number % len(noise())])
        result = await client.execute(tool, PATIENT, path=str(sent))
        succeeded(result)
        saved = await result.files[0].save(Path(folder, "saved"))
        if not filecmp.cmp(sent, saved, shallow=False):
            raise RuntimeError("another file came than was sent")


def _rows(side: str) -> list[Row]:
    title = f"image of {{image_bytes:,}} bytes to its caller, {side} (SQL by hand)"
    bar = Bar("ratio", "at most", 1.5)
    return [
        Row(title=title, unit="ms", key="ours each", ours=side, raw=side, raw_key="by hand each", bar=bar),
        Row(title=f"CPU: {title}", unit="ms", key="ours cpu", ours=side, raw=side, raw_key="by hand cpu"),
    ]


MEASURE = Measure(
    name="parts",
    needs=frozenset(FLEETS.values()),
    sides={f"{NAMES[database]}, {lane} lane": partial(copies, fleet) for (database, lane), fleet in FLEETS.items()},
    rows=[row for database, lane in FLEETS for row in _rows(f"{NAMES[database]}, {lane} lane")],
)
MEMORY = Measure(
    name="parts-memory",
    needs=frozenset({"servers"}),
    rounds_at_most=1,
    sides={lane: partial(held, "postgres", lane) for lane in LANES},
    rows=[
        Row(
            title=f"growth of {who} while a file of {{file_bytes:,}} bytes passes, {lane} lane, PostgreSQL",
            unit="MB",
            key=who,
            ours=lane,
            bar=Bar("value", "at most", 32),
        )
        for lane in LANES
        for who in ("worker", "client")
    ],
)
