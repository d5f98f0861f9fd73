"""The servers and workers of one run; when it ends, none of their processes is left."""

import asyncio
import os
import secrets
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from forge_tools.config import Settings
from forge_tools.errors import DatabaseUnavailableError
from forge_tools.storage.migrate import upgrade
from tests.chaos import effects
from tests.chaos.brokers import BROKERS, BrokerUnderFire
from tests.chaos.calls import KILL_GRACE
from tests.chaos.crew import DRAIN, Crew
from tests.chaos.databases import PostgresUnderFire, SqliteUnderFire, UnderFire
from tests.chaos.members import RUN_VARIABLE, Member, members
from tests.chaos.plan import Plan
from tests.chaos.schedule import Fault

MIGRATION_TRIES = 6
_MIGRATING = threading.Lock()
"""Alembic keeps its context in globals, and stages may open together."""


class Stage:
    """Opened with `async with`, in a folder of its own."""

    broker: BrokerUnderFire
    database: UnderFire

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "effects.log"
        self.broker = BROKERS[plan.broker](folder / plan.broker)
        if plan.database == "sqlite":
            self.database = SqliteUnderFire(folder)
        else:
            self.database = PostgresUnderFire(folder / "postgres", self.on_starter)
        self._plan = plan
        self._name = secrets.token_hex(8)
        self._starter = ThreadPoolExecutor(1)
        self._cleanup = AsyncExitStack()

    async def __aenter__(self) -> "Stage":
        try:
            await self._open()
        except BaseException:
            await self._cleanup.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cleanup.aclose()

    async def on_starter(self, work: Callable[[], Any]) -> Any:
        """Run on the one thread that servers may be started from: the kernel ends them with it."""
        return await asyncio.get_running_loop().run_in_executor(self._starter, work)

    def members(self) -> list[Member]:
        """Every process of this run that there is: workers, their children, and what tools started."""
        return members(self._name)

    async def _open(self) -> None:
        self._cleanup.callback(self._starter.shutdown)
        await self.database.open()
        self._cleanup.push_async_callback(self.database.close)
        await self.on_starter(self.broker.start)
        self._cleanup.push_async_callback(self.on_starter, self.broker.stop)
        await asyncio.to_thread(_migrate, self.database.url)
        if any(step.fault is Fault.SET_CLOCK for step in self._plan.steps):
            await self.database.shadow_clock()
        self.settings = Settings.load(
            home=self.folder / "home",
            broker_url=self.broker.url,
            database_url=self.database.url,
            workspace=self.folder,
            kill_grace=KILL_GRACE,
        )
        self._cleanup.callback(self._end_all)
        self.crew = Crew(self.folder, self._environment(), self._plan.posts, self._plan.program)
        self._cleanup.callback(self.crew.bury)
        await self.crew.wait_ready()

    def _end_all(self) -> None:
        for member in self.members():
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "FORGE_HOME": str(self.settings.home),
            "FORGE_BROKER_URL": self.settings.broker_url,
            "FORGE_DATABASE_URL": self.settings.database_url,
            "FORGE_WORKSPACE": str(self.folder),
            "FORGE_KILL_GRACE": str(KILL_GRACE),
            "FORGE_DRAIN": str(DRAIN),
            RUN_VARIABLE: self._name,
            effects.VARIABLE: str(self.log),
        }


def _migrate(url: str) -> None:
    """As often as it takes: where many runs begin together, a server may not answer in time."""
    with _MIGRATING:
        for left in reversed(range(MIGRATION_TRIES)):
            try:
                upgrade(url)
                break
            except DatabaseUnavailableError:
                if not left:
                    raise
