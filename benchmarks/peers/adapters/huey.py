"""huey: Redis storage that notifies callers that wait for a result, instead of letting them poll."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from huey import RedisHuey

from benchmarks.peers.subject import SLEPT, broker

TIMEOUT = 300
URL = f"{broker()}?max_connections=1000&socket_timeout=600"

huey = RedisHuey("peers", url=URL, notify_result=True)


def _echo(number: int) -> int:
    return number


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return SLEPT


echo = huey.task(name="echo")(_echo)
sleep = huey.task(name="sleep")(_sleep)


class Client:
    """Waits for each result with a blocking read."""

    async def call(self, number: int) -> int:
        return int(echo(number).get(blocking=True, timeout=TIMEOUT))

    async def burst(self, numbers: range) -> list[int]:
        sent = [echo(number) for number in numbers]
        return [result.get(blocking=True, timeout=TIMEOUT) for result in sent]

    async def sleeps(self, count: int, seconds: float) -> list[str]:
        sent = [sleep(seconds) for _ in range(count)]
        return [result.get(blocking=True, timeout=TIMEOUT) for result in sent]


@asynccontextmanager
async def connect() -> AsyncIterator[Client]:
    yield Client()
