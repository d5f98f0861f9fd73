"""taskiq: its broker on Redis streams, which acknowledges; results are polled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from taskiq_redis import (
    RedisAsyncResultBackend,
    RedisStreamBroker,
)

from benchmarks.peers.subject import SLEPT, broker

CHECK_SECONDS = 0.002
TIMEOUT = 300

queue = RedisStreamBroker(url=broker()).with_result_backend(RedisAsyncResultBackend(redis_url=broker()))


async def _echo(number: int) -> int:
    return number


async def _sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return SLEPT


echo = queue.register_task(_echo, task_name="echo")
sleep = queue.register_task(_sleep, task_name="sleep")


class Client:
    """Sends calls together and asks for their results in order: when one is there, most after it are."""

    async def call(self, number: int) -> int:
        return int(await _value(await echo.kiq(number)))

    async def burst(self, numbers: range) -> list[int]:
        sent = await asyncio.gather(*(echo.kiq(number) for number in numbers))
        return [await _value(task) for task in sent]

    async def sleeps(self, count: int, seconds: float) -> list[str]:
        sent = await asyncio.gather(*(sleep.kiq(seconds) for _ in range(count)))
        return [await _value(task) for task in sent]


@asynccontextmanager
async def connect() -> AsyncIterator[Client]:
    await queue.startup()
    try:
        yield Client()
    finally:
        await queue.shutdown()


async def _value(task: Any) -> Any:
    result = await task.wait_result(check_interval=CHECK_SECONDS, timeout=TIMEOUT)
    result.raise_for_error()
    return result.return_value
