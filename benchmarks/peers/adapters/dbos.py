"""DBOS: workflows on a queue in PostgreSQL. Its workers are applications, so `python -m` of this file is one."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dbos import DBOS, DBOSClient, DBOSConfig

from benchmarks.peers.subject import SLEPT, database

QUEUE = "calls"
POLLING_SECONDS = 0.01
VERSION = "1"


async def _echo(number: int) -> int:
    return number


async def _sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return SLEPT


class Client:
    """Enqueues one by one, and asks for results in order."""

    def __init__(self, dbos: DBOSClient) -> None:
        self._dbos = dbos

    async def call(self, number: int) -> int:
        handle = self._dbos.enqueue({"queue_name": QUEUE, "workflow_name": "echo", "app_version": VERSION}, number)
        return int(handle.get_result(polling_interval_sec=POLLING_SECONDS))

    async def burst(self, numbers: range) -> list[int]:
        options = {"queue_name": QUEUE, "workflow_name": "echo", "app_version": VERSION}
        sent = [self._dbos.enqueue(options, number) for number in numbers]
        return [handle.get_result(polling_interval_sec=POLLING_SECONDS) for handle in sent]

    async def sleeps(self, count: int, seconds: float) -> list[str]:
        options = {"queue_name": QUEUE, "workflow_name": "sleep", "app_version": VERSION}
        sent = [self._dbos.enqueue(options, seconds) for _ in range(count)]
        return [handle.get_result(polling_interval_sec=POLLING_SECONDS) for handle in sent]


@asynccontextmanager
async def connect() -> AsyncIterator[Client]:
    dbos = DBOSClient(system_database_url=database())
    try:
        yield Client(dbos)
    finally:
        dbos.destroy()


def main(arguments: Sequence[str]) -> None:
    """`prepare` creates the tables; anything else is the name of a worker and its concurrency."""
    name = arguments[0]
    config = DBOSConfig(
        name="peers",
        system_database_url=database(),
        executor_id=name,
        application_version=VERSION,
        log_level="WARNING",
    )
    DBOS(config=config)
    DBOS.workflow(name="echo")(_echo)
    DBOS.workflow(name="sleep")(_sleep)
    DBOS.launch()
    if name != "prepare":
        DBOS.register_queue(QUEUE, worker_concurrency=int(arguments[1]), polling_interval_sec=POLLING_SECONDS)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
    DBOS.destroy()


if __name__ == "__main__":
    main(sys.argv[1:])
