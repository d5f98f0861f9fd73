"""The available workers by name, and how each is started."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from benchmarks import raw_celery
from benchmarks.processes import Client, Worker
from forge_tools.config import Settings
from forge_tools.embedded.stack import settings_environment
from forge_tools.model import Lane

if TYPE_CHECKING:
    from benchmarks.scene import Scene

Database = Literal["sqlite", "postgres"]
Ours = Literal["sqlite-pair", "postgres-pair", "sqlite-solo", "postgres-solo", "sqlite-process", "postgres-process"]
Raw = Literal["raw", "raw-sql"]
Fleet = Literal[Ours, Raw]
DATABASES: tuple[Database, ...] = ("sqlite", "postgres")
TOOLS = ("--no-builtins", "--tools", "benchmarks.tools:TOOLS")
OURS = ("-P", "-m", "workers")
WARMING_CALLS = 20


@dataclass(frozen=True, slots=True)
class Crew:
    """Our worker processes on one queue, named after the fleet."""

    database: Database
    lane: Lane
    processes: int
    concurrency: int


CREWS: dict[str, Crew] = {
    "sqlite-pair": Crew("sqlite", "async", 2, 1_000),
    "postgres-pair": Crew("postgres", "async", 2, 1_000),
    "sqlite-solo": Crew("sqlite", "async", 1, 2_000),
    "postgres-solo": Crew("postgres", "async", 1, 2_000),
    "sqlite-process": Crew("sqlite", "process", 1, raw_celery.CONCURRENCY),
    "postgres-process": Crew("postgres", "process", 1, raw_celery.CONCURRENCY),
}


def start(scene: "Scene", fleet: Fleet) -> Iterator[Worker]:
    """Start its processes without waiting: a caller waits for all its fleets together."""
    if fleet in get_args(Raw):
        yield raw(fleet, scene.folder, scene.broker, scene.results[fleet])
        return
    crew = CREWS[fleet]
    for number in range(crew.processes):
        limits = ("--lane", crew.lane, "--queues", fleet, "--concurrency", str(crew.concurrency))
        yield ours(f"{fleet}-{number}", scene.folder, scene.settings[crew.database], *limits, *TOOLS)


@contextmanager
def crew(
    folder: Path,
    settings: Settings,
    name: str,
    processes: int,
    slots: int,
    program: Sequence[str] = OURS,
    *,
    lane: Lane = "async",
) -> Iterator[list[Worker]]:
    """Run workers on queue `default` with these settings, and end them afterwards."""
    options = ("--lane", lane, "--queues", "default", "--concurrency", str(slots), *TOOLS)
    with ExitStack() as cleanup:
        started = [ours(f"{name}-{one}", folder, settings, *options, program=program) for one in range(processes)]
        for worker in started:
            cleanup.callback(worker.stop)
        for worker in started:
            worker.wait_ready()
        yield started


def ours(name: str, folder: Path, settings: Settings, *arguments: str, program: Sequence[str] = OURS) -> Worker:
    """Start our worker as a user would."""
    return Worker(
        name,
        [sys.executable, *program, *arguments],
        folder=folder,
        environment={**os.environ, **settings_environment(settings)},
        ready_words="Worker ready",
    )


def raw(name: str, folder: Path, broker: str, results: str) -> Worker:
    """Start a worker of raw Celery, on the queue of its name, as Celery's documentation does."""
    return Worker(
        name,
        [
            *(sys.executable, "-m", "celery", "--app", "benchmarks.raw_celery", "worker"),
            *("--pool", "prefork", "--concurrency", str(raw_celery.CONCURRENCY), "--loglevel", "INFO"),
        ],
        folder=folder,
        environment=_of_raw(name, broker, results),
        ready_words=" ready.",
    )


@contextmanager
def client(scene: "Scene", fleet: Fleet) -> Iterator[Client]:
    """Start a client of a fleet in its own process, connected to the workers and named after the fleet."""
    scene.pids(fleet)
    if fleet == "raw" or fleet == "raw-sql":
        program, environment = "benchmarks.raw_celery", _of_raw(fleet, scene.broker, scene.results[fleet])
    else:
        program, environment = "benchmarks.client", {**os.environ, **settings_environment(scene.settings_of(fleet))}
    asked = Client(fleet, [sys.executable, "-m", program], folder=scene.folder, environment=environment)
    try:
        asked.ask("lone", calls=WARMING_CALLS)
        yield asked
    finally:
        asked.stop()


def _of_raw(name: str, broker: str, results: str) -> dict[str, str]:
    return {**os.environ, raw_celery.BROKER: broker, raw_celery.RESULTS: results, raw_celery.QUEUE: name}
