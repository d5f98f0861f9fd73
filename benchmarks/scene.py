"""What a side finds when its turn comes: addresses, process ids and sizes, and clients that have met their servers."""

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.processes import Worker, cpu_seconds
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.embedded.stack import settings_environment
from forge_tools.records import ExecutionContext, ToolResult

if TYPE_CHECKING:
    from celery import Task

Database = Literal["sqlite", "postgres"]
Needs = Literal["async", "process", "raw"]
DATABASES: tuple[Database, ...] = ("sqlite", "postgres")
CONTEXT = ExecutionContext(working_dir=".", agent_id="benchmark")
WARMING_CALLS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything one side does in one round."""

    round_trips: int = 300
    burst: int = 4_000
    process_burst: int = 400
    sleeps: int = 500
    raw_sleeps: int = 20
    in_process: int = 10_000
    starts: int = 10
    many: int = 100_000


QUICK = Sizes(round_trips=30, burst=400, process_burst=40, sleeps=100, raw_sleeps=4, starts=2, many=2_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Data only, so that it can be sent to the process in which a side performs.

    `workers` has the process id of each (side, lane); `servers` those that a side leans on.
    """

    sizes: Sizes
    folder: Path
    broker: str
    settings: Mapping[Database, Settings]
    workers: Mapping[tuple[str, Needs], int]
    servers: Mapping[str, tuple[int, ...]]

    @asynccontextmanager
    async def client(self, database: Database) -> AsyncIterator[ExecutorClient]:
        """A client of ours that has made its connections and met its broker."""
        async with ExecutorClient(self.settings[database]) as client:
            for _ in range(WARMING_CALLS):
                succeeded(await client.execute("NoOp", CONTEXT))
            yield client

    def raw(self, name: str) -> "Task[Any, Any]":
        """A task of raw Celery, whose client has made its connections."""
        from benchmarks.raw_celery import raw_app  # loads Celery, which ours must not find already loaded

        app = raw_app(self.broker)
        for _ in range(WARMING_CALLS):
            app.tasks["raw.no_op"].delay().get(timeout=60)
        return app.tasks[name]

    def cpu_seconds(self, side: str, need: Needs) -> float:
        """What the worker of a side has used, with the servers it leans on; the client adds its own."""
        return cpu_seconds([self.workers[side, need], *self.servers[side]])

    def start_worker(self, name: str, database: Database, *arguments: str) -> Worker:
        """Start a worker of ours as a user would, and wait until it serves."""
        worker = Worker(
            name,
            [sys.executable, "-P", "-m", "workers", *arguments],
            folder=self.folder,
            environment={**os.environ, **settings_environment(self.settings[database])},
        )
        worker.wait_ready("Worker ready")
        return worker


def succeeded(result: ToolResult) -> None:
    """Figures of failed calls mean nothing."""
    if not result.success:
        raise RuntimeError(f"A measured call failed: {result.error}")
