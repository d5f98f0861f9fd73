"""Simulated workers: all parts of a real one but its lane, on one SQLite file and a virtual clock. A minute takes seconds."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest

from forge_tools.config import Settings
from forge_tools.model.execution import Claim
from forge_tools.storage import Store, open_store
from forge_tools.storage.columns import MOMENT_FORMAT
from forge_tools.storage.connection import database
from forge_tools.storage.queue import sqlite
from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolResult
from tests.migrated import migrated
from tests.unit.workers.engines import setup_of
from workers import worker as module
from workers.lanes.base import Host
from workers.outcomes import cancelled, outcome_of
from workers.services import recovery
from workers.worker import Setup, Worker

LEASE = 30.0
HEARTBEAT = 3.0
STEP = 0.5
"""Seconds that pass while the disk is waited for: far less than half a lease, after which nobody trusts an answer."""


class Grep(BaseTool):
    """Search, in the calls of `tests.contract.calls`."""

    name = "Grep"
    category = ToolCategory.FILE
    lane = "async"
    capabilities = Capabilities(idempotent=True)
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        raise AssertionError("the lane runs nothing")


class InstantLane:
    """Bodies end as soon as they begin, or hang until they are cancelled."""

    def __init__(self, slots: int = 4) -> None:
        self.hangs = False
        self.ran: list[Claim] = []
        self._slots = slots
        self._running: dict[tuple[str, int], Claim] = {}

    async def start(self, host: Host) -> None:
        self._host = host

    def free_slots(self) -> int:
        return self._slots - len(self._running)

    def answering(self) -> int:
        return self._slots

    def run(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self.ran.append(claim)
            if self.hangs:
                self._running[claim.id, claim.attempt] = claim
            else:
                self._host.finished(outcome_of(claim, ToolResult.ok("done", duration_ms=1.0), 1000))

    def cancel(self, execution_id: str, attempt: int) -> None:
        claim = self._running.pop((execution_id, attempt), None)
        if claim is not None:
            self._host.finished(cancelled(claim, 1.0))

    def ban(self, tools: Iterable[str]) -> None:
        """There is nothing to begin."""

    def running(self) -> list[Claim]:
        return list(self._running.values())

    async def stop(self) -> list[Claim]:
        return self.running()


class Simulated:
    """A worker, and what became of it."""

    def __init__(
        self, worker: Worker, lane: InstantLane, errors: list[BaseException], tasks: set[asyncio.Task[Any]]
    ) -> None:
        self.worker = worker
        self.lane = lane
        self.errors = errors
        self._tasks = tasks

    async def die(self) -> None:
        """Beat no more and do nothing more, as after SIGKILL: no row says so."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


class Simulation:
    """Several workers on one database; `store` is for the test to look in."""

    store: Store

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._settings = Settings.load(
            home=tmp_path,
            broker_url="redis+socket:///nowhere/x.sock",
            database_url=migrated(f"sqlite:///{tmp_path / 'forge.db'}"),
            heartbeat=HEARTBEAT,
            lease=LEASE,
            consumption_interval=10**6,
        )
        _share_the_clock(asyncio.get_running_loop(), monkeypatch)
        self._lanes: list[InstantLane] = []
        self._open = AsyncExitStack()
        monkeypatch.setattr(module, "lane_of", self._lane_of)

    async def __aenter__(self) -> Self:
        self.store = await self._open.enter_async_context(await open_store(self._settings.database))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def worker(self) -> Simulated:
        """One more, which has started: the first of them leads."""
        errors: list[BaseException] = []
        store = await open_store(self._settings.database)
        ends = SimpleNamespace(broken=errors.append, replace_process=lambda why: errors.append(RuntimeError(why)))
        worker = Worker(setup_of(self._settings, Grep), store, ends)
        others = asyncio.all_tasks()
        await worker.lane.start(worker)
        await worker.start()
        self._open.push_async_callback(worker.stop)
        return Simulated(worker, self._lanes[-1], errors, asyncio.all_tasks() - others)

    def _lane_of(self, _: Setup) -> InstantLane:
        self._lanes.append(InstantLane())
        return self._lanes[-1]


def _share_the_clock(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the database go by the clock of this loop, and those who compare the two."""
    began, start = loop.time(), datetime.now(UTC)

    def forge_now(seconds: float = 0.0) -> str:
        return (start + timedelta(seconds=loop.time() - began + seconds)).strftime(MOMENT_FORMAT)

    for stored in (database, sqlite):
        monkeypatch.setattr(stored, "forge_now", forge_now)
    monkeypatch.setattr(recovery, "time", SimpleNamespace(monotonic=loop.time))
