"""Celery: results in Redis; its client asks for them one by one, as `AsyncResult.get` does."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from celery import Celery

from benchmarks.peers.subject import SLEPT, broker

URL = broker().replace("unix://", "redis+socket://", 1)
TIMEOUT = 300

app = Celery("peers", broker=URL, backend=URL)


@app.task(name="echo")
def echo(number: int) -> int:
    return number


@app.task(name="sleep")
def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return SLEPT


class Client:
    """Calls the tasks as Celery's user guide does."""

    async def call(self, number: int) -> int:
        return int(echo.delay(number).get(timeout=TIMEOUT))

    async def burst(self, numbers: range) -> list[int]:
        sent = [echo.delay(number) for number in numbers]
        return [result.get(timeout=TIMEOUT) for result in sent]

    async def sleeps(self, count: int, seconds: float) -> list[str]:
        sent = [sleep.delay(seconds) for _ in range(count)]
        return [result.get(timeout=TIMEOUT) for result in sent]


@asynccontextmanager
async def connect() -> AsyncIterator[Client]:
    yield Client()
