"""What a side gets for its turn: addresses, process ids, sizes, and connected clients."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.fleets import CREWS, WARMING_CALLS, Database, Fleet, Ours, Raw
from benchmarks.long_history import LongHistory
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.model import ExecutionContext, ToolResult

if TYPE_CHECKING:
    from celery import Task

Needs = Literal[Fleet, "servers", "history"]
CONTEXT = ExecutionContext(working_dir=".", agent_id="benchmark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything one side does in one round."""

    round_trips: int = 334
    short_silences: int = 100
    long_silences: int = 20
    burst: int = 4_000
    bursts: int = 3
    process_burst: int = 400
    submits: int = 4_000
    sleeps: int = 500
    many_sleeps: int = 5_000
    raw_sleeps: int = 20
    payloads: int = 40
    backlog: int = 10_000
    in_process: int = 10_000
    starts: int = 3
    saves: int = 20
    many: int = 100_000
    small_burst: int = 1_000
    large_burst: int = 10_000
    huge_burst: int = 100_000
    full_tables: int = 1_000_000
    history: int = 10_000_000
    small_history: int = 1_000_000
    old_history: int = 1_000_000
    prunings: int = 8
    prune_seconds: float = 5
    idle_seconds: float = 20
    tool_pairs: int = 15
    tool_calls: int = 300
    corpus_files: int = 5_500
    listed: int = 10_000
    replacements: int = 100_000
    shell_bytes: int = 1 << 30
    image_copies: int = 8
    image_bytes: int = 20_000_000
    file_bytes: int = 2_000_000_000


QUICK = Sizes(
    round_trips=30,
    short_silences=3,
    long_silences=2,
    burst=400,
    bursts=1,
    process_burst=40,
    submits=400,
    sleeps=100,
    many_sleeps=200,
    raw_sleeps=4,
    payloads=4,
    backlog=600,
    in_process=1_000,
    starts=1,
    many=2_000,
    small_burst=100,
    large_burst=300,
    huge_burst=600,
    full_tables=5_000,
    history=20_000,
    small_history=5_000,
    old_history=5_000,
    prunings=2,
    prune_seconds=1,
    idle_seconds=2,
    tool_pairs=3,
    tool_calls=20,
    corpus_files=400,
    listed=500,
    replacements=1_000,
    shell_bytes=1 << 24,
    image_copies=2,
    image_bytes=2_000_000,
    file_bytes=20_000_000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Only data, so that it can be sent to the process in which a side runs.

    `workers` has the process ids of each fleet that runs, `absent` why another one does not.
    """

    sizes: Sizes
    folder: Path
    broker: str = ""
    broker_pid: int = 0
    database_pid: int = 0
    administration: str = ""
    """The PostgreSQL database that is nobody's, from which the counters of all others are read."""

    settings: Mapping[str, Settings]
    results: Mapping[str, str]
    workers: Mapping[Fleet, tuple[int, ...]]
    absent: Mapping[Fleet, str]
    long: LongHistory | None = None
    past: Mapping[Database, Settings] = field(default_factory=dict)
    """A long history on both databases, if one was asked for."""

    @asynccontextmanager
    async def client(self, fleet: Ours) -> AsyncIterator[ExecutorClient]:
        """A client of ours that has made its connections and met the workers of this fleet."""
        self.pids(fleet)
        tool = "NoOpProcess" if CREWS[fleet].lane == "process" else "NoOp"
        async with ExecutorClient(self.settings_of(fleet)) as client:
            for _ in range(WARMING_CALLS):
                succeeded(await client.execute(tool, CONTEXT))
            yield client

    def raw(self, name: str, fleet: Raw = "raw") -> "Task[Any, Any]":
        """A task of raw Celery, whose client has made its connections."""
        from benchmarks.raw_celery import raw_app  # loads Celery, which ours must not find already loaded

        self.pids(fleet)
        app = raw_app(self.broker, self.results[fleet], fleet)
        for _ in range(WARMING_CALLS):
            app.tasks["raw.no_op"].delay().get(timeout=60)
        return app.tasks[name]

    def settings_of(self, fleet: Ours) -> Settings:
        """Those of a client whose calls go to this fleet."""
        return self.settings[CREWS[fleet].database].model_copy(update={"routes": {"other": fleet}})

    def pids(self, fleet: Fleet) -> tuple[int, ...]:
        """The processes of a fleet, without their children."""
        if fleet in self.absent:
            raise RuntimeError(self.absent[fleet])
        return self.workers[fleet]


def own_settings(home: Path, broker: str, database: str) -> Settings:
    """Settings with a home of their own."""
    home.mkdir()
    return Settings.load(home=home, workspace=home, broker_url=broker, database_url=database)


def succeeded(result: ToolResult) -> None:
    """Figures of failed calls mean nothing."""
    if not result.success:
        raise RuntimeError(f"A measured call failed: {result.error}")
