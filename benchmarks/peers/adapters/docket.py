"""docket: streams in Redis, which acknowledge; results are awaited on its notifications."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from docket import Docket

from benchmarks.peers.subject import SLEPT, broker


async def echo(number: int) -> int:
    return number


async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return SLEPT


TASKS = (echo, sleep)
URL = f"{broker()}?max_connections=1000"


class Client:
    """Sends many calls in one pipeline."""

    def __init__(self, docket: Any) -> None:
        self._docket = docket

    async def call(self, number: int) -> int:
        execution = await self._docket.add(echo)(number)
        return int(await execution.get_result())

    async def burst(self, numbers: range) -> list[int]:
        sent = await self._docket.add_many(self._docket.call(echo)(number) for number in numbers)
        return [await execution.get_result() for execution in sent]

    async def sleeps(self, count: int, seconds: float) -> list[str]:
        sent = await self._docket.add_many(self._docket.call(sleep)(seconds) for _ in range(count))
        return [await execution.get_result() for execution in sent]


@asynccontextmanager
async def connect() -> AsyncIterator[Client]:
    async with Docket(name="peers", url=URL) as docket:
        yield Client(docket)
