"""procrastinate: jobs in PostgreSQL. It keeps no results, so a job's number stands for its status `succeeded`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from procrastinate import App, PsycopgConnector
from procrastinate.jobs import Status

from benchmarks.peers.subject import SLEPT, database

POLLING_SECONDS = 0.001
LOOKING_SECONDS = 0.01

app = App(connector=PsycopgConnector(conninfo=database()))


async def _echo(number: int) -> int:
    return number


async def _sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return SLEPT


echo = app.task(name="echo")(_echo)
sleep = app.task(name="sleep")(_sleep)


class Client:
    """Defers many jobs in one statement, and polls until they end."""

    async def call(self, number: int) -> int:
        job = await echo.defer_async(number=number)
        while (status := await app.job_manager.get_job_status_async(job)) in (Status.TODO, Status.DOING):
            await asyncio.sleep(POLLING_SECONDS)
        if status != Status.SUCCEEDED:
            raise RuntimeError(f"A measured job ended as {status}")
        return number

    async def burst(self, numbers: range) -> list[int]:
        before = await _succeeded("echo")
        await echo.batch_defer_async(*({"number": number} for number in numbers))
        await _until_succeeded("echo", before + len(numbers))
        return list(numbers)

    async def sleeps(self, count: int, seconds: float) -> list[str]:
        before = await _succeeded("sleep")
        await sleep.batch_defer_async(*({"seconds": seconds} for _ in range(count)))
        await _until_succeeded("sleep", before + count)
        return [SLEPT] * count


@asynccontextmanager
async def connect() -> AsyncIterator[Client]:
    async with app.open_async():
        yield Client()


async def _succeeded(task: str) -> int:
    """How many jobs of a task have succeeded: one statement, however many were deferred."""
    counts = {one["name"]: one for one in await app.job_manager.list_tasks_async(task=task)}
    if task in counts and counts[task]["failed"]:
        raise RuntimeError(f"{counts[task]['failed']} measured jobs failed")
    return int(counts[task]["succeeded"]) if task in counts else 0


async def _until_succeeded(task: str, total: int) -> None:
    while await _succeeded(task) < total:
        await asyncio.sleep(LOOKING_SECONDS)
