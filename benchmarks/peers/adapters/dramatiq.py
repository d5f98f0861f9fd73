"""dramatiq: Redis broker, which acknowledges by default, with the results middleware."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.subject import SLEPT, broker

TIMEOUT_MS = 300_000
URL = f"{broker()}?max_connections=1000&socket_timeout=600"

queue = RedisBroker(url=URL)
queue.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(queue)


def _echo(number: int) -> int:
    return number


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return SLEPT


echo = dramatiq.actor(_echo, actor_name="echo", store_results=True)
sleep = dramatiq.actor(_sleep, actor_name="sleep", store_results=True)


class Client:
    """Waits for each result with a blocking read."""

    async def call(self, number: int) -> int:
        return int(echo.send(number).get_result(block=True, timeout=TIMEOUT_MS))

    async def burst(self, numbers: range) -> list[int]:
        sent = [echo.send(number) for number in numbers]
        return [message.get_result(block=True, timeout=TIMEOUT_MS) for message in sent]

    async def sleeps(self, count: int, seconds: float) -> list[str]:
        sent = [sleep.send(seconds) for _ in range(count)]
        return [message.get_result(block=True, timeout=TIMEOUT_MS) for message in sent]


@asynccontextmanager
async def connect() -> AsyncIterator[Client]:
    yield Client()
