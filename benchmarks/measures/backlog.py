"""A long queue with few slots: whether claims slow down, memory grows, or a new caller waits for all the others."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from benchmarks import fleets
from benchmarks.apart import apart
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.processes import resident_megabytes
from benchmarks.scene import CONTEXT, Scene, succeeded
from forge_tools.client import ExecutorClient, Handle
from forge_tools.config import Settings

SLOTS = 200
SECONDS = 0.1
POLL_SECONDS = 0.1
QUEUE = "background"
NEWCOMER = CONTEXT.model_copy(update={"agent_id": "newcomer", "session_id": "newcomer"})


def ours(scene: Scene) -> Readings:
    with ExitStack() as cleanup:
        settings = cleanup.enter_context(apart(scene, "backlog"))
        options = ("--lane", "async", "--queues", f"default,{QUEUE}", "--concurrency", str(SLOTS), *fleets.TOOLS)
        worker = fleets.ours("backlog", scene.folder, settings, *options)
        cleanup.callback(worker.stop)
        worker.wait_ready()
        return asyncio.run(_ours(scene, settings, worker.pid))


async def _ours(scene: Scene, settings: Settings, worker: int) -> Readings:
    backlog = scene.sizes.backlog
    async with ExecutorClient(settings) as client, ExecutorClient(settings) as newcomer:
        await _sleep(client, 2 * SLOTS)
        await _visit(newcomer, QUEUE)
        short = await _rate_of_short_queue(client, backlog // 4)
        before = resident_megabytes(worker)
        started = time.perf_counter()
        async with _highest_memory(worker) as highest:
            handles = await asyncio.gather(*(_submit(client) for _ in range(backlog)))
            same, other = await asyncio.gather(_visit(newcomer, QUEUE), _visit(newcomer, "default"))
            for result in await asyncio.gather(*(handle.result(timeout=300) for handle in handles)):
                succeeded(result)
        seconds = time.perf_counter() - started
    return {
        "rate": backlog / seconds,
        "short": short,
        "growth": max(highest) - before,
        "same": same,
        "other": other,
        "drain": seconds,
    }


async def _rate_of_short_queue(client: ExecutorClient, calls: int) -> float:
    """As many calls wait as run, so that no slot is ever free and the queue is almost empty."""
    at_once = 2 * SLOTS
    started = time.perf_counter()

    async def one_after_another() -> None:
        for _ in range(max(calls // at_once, 1)):
            await _sleep(client, 1)

    await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    return at_once * max(calls // at_once, 1) / (time.perf_counter() - started)


async def _sleep(client: ExecutorClient, calls: int) -> None:
    asked = (client.call("Sleep", {"seconds": SECONDS}, CONTEXT, queue=QUEUE) for _ in range(calls))
    for result in await asyncio.gather(*asked):
        succeeded(result)


async def _submit(client: ExecutorClient) -> Handle:
    return await client.submit("Sleep", {"seconds": SECONDS}, CONTEXT, queue=QUEUE)


async def _visit(newcomer: ExecutorClient, queue: str) -> float:
    started = time.perf_counter()
    succeeded(await newcomer.call("NoOp", {}, NEWCOMER, queue=queue))
    return time.perf_counter() - started


@asynccontextmanager
async def _highest_memory(pid: int) -> AsyncIterator[list[float]]:
    seen = [resident_megabytes(pid)]

    async def look() -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            seen.append(resident_megabytes(pid))

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()


MEASURE = Measure(
    name="backlog",
    needs=frozenset({"servers"}),
    sides={"async": ours},
    rows=[
        Row(
            title="{backlog:,} queued, 200 run: rate (next to nothing queued)",
            unit="/s",
            key="rate",
            ours="async",
            raw="async",
            raw_key="short",
            bar=Bar("ratio", "at least", 0.95),
        ),
        Row(
            title="{backlog:,} queued: growth of the worker",
            unit="MB",
            key="growth",
            ours="async",
            bar=Bar("value", "at most", 10),
        ),
        Row(
            title="{backlog:,} queued: another agent's call, same queue (time to empty it)",
            unit="s",
            key="same",
            ours="async",
            raw="async",
            raw_key="drain",
            bar=Bar("value", "at most", 1),
        ),
        Row(
            title="{backlog:,} queued: another agent's call, queue default (time to empty it)",
            unit="s",
            key="other",
            ours="async",
            raw="async",
            raw_key="drain",
            bar=Bar("value", "at most", 1),
        ),
    ],
)
