"""Only submitting: calls accepted in the background, a hundred at a time."""

import asyncio
import time
from functools import partial

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.fleets import Ours
from benchmarks.scene import CONTEXT, Scene, succeeded
from forge_tools.client import ExecutorClient, Handle

AT_ONCE = 100


def ours(fleet: Ours, scene: Scene) -> Readings:
    return asyncio.run(_ours(fleet, scene))


async def _ours(fleet: Ours, scene: Scene) -> Readings:
    """Accepted means committed; the workers run the calls meanwhile."""
    async with scene.client(fleet) as client:
        started, used = time.perf_counter(), time.process_time()
        shares = await asyncio.gather(*(_submit(client, scene.sizes.submits // AT_ONCE) for _ in range(AT_ONCE)))
        seconds, cpu = time.perf_counter() - started, time.process_time() - used
        handles = [handle for share in shares for handle in share]
        for result in await asyncio.gather(*(handle.result(timeout=300) for handle in handles)):
            succeeded(result)
    return {"each": seconds / len(handles) * 1000, "client": cpu / len(handles) * 1e6}


async def _submit(client: ExecutorClient, calls: int) -> list[Handle]:
    return [await client.submit("NoOp", context=CONTEXT) for _ in range(calls)]


def raw(scene: Scene) -> Readings:
    no_op, calls = scene.raw("raw.no_op"), scene.sizes.submits // 4
    started, used = time.perf_counter(), time.process_time()
    sent = [no_op.delay() for _ in range(calls)]
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    for result in sent:
        result.get(timeout=300)
    return {"each": seconds / calls * 1000, "client": cpu / calls * 1e6}


MEASURE = Measure(
    name="submit",
    needs=frozenset({"postgres-pair", "sqlite-pair", "raw"}),
    sides={"raw": raw, "sqlite": partial(ours, "sqlite-pair"), "postgres": partial(ours, "postgres-pair")},
    rows=[
        Row(
            title="submit alone, 100 at a time, PostgreSQL",
            unit="ms",
            key="each",
            ours="postgres",
            raw="raw",
            bar=Bar("value", "at most", 0.05),
        ),
        Row(title="submit alone, CPU of the client, PostgreSQL", unit="us", key="client", ours="postgres", raw="raw"),
        Row(title="submit alone, 100 at a time, SQLite", unit="ms", key="each", ours="sqlite", raw="raw"),
    ],
)
