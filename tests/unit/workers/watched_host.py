"""A host whose shells are what a test says, beside a real database."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forge_tools.config import Settings
from forge_tools.model.places import ShellRecord, ShellStatus, shell_id
from forge_tools.sandbox.shells.supervisor import kernel_id
from forge_tools.storage import Store
from forge_tools.storage.shells import Shells
from workers.services.shells import DesertedShells, ShellWatch

GONE = 2**22 + 1
"""No process has such a number."""


def shell(number: int = 1, **changes: Any) -> ShellRecord:
    plain = ShellRecord(
        id=shell_id("here", f"{number:012x}"),
        hostname="here",
        command="npm run dev",
        cwd=".",
        status=ShellStatus.RUNNING,
        kernel=kernel_id(),
        pid=GONE,
        start_ticks=77,
        started_at=datetime(2026, 5, 17, tzinfo=UTC),
        session_id="s",
    )
    return replace(plain, **changes)


class Host:
    """What the supervisors of a host would say; and how often its rows were read and written."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings = settings
        self.store = store
        self.shells: list[ShellRecord] = []
        self.statements: list[str] = []
        self.forgotten: list[float] = []
        self.renewed = 0
        self.now = 1000.0

    def watch(self) -> ShellWatch:
        return ShellWatch(Counted(self), self.settings, clock=lambda: self.now)

    def deserted(self) -> DesertedShells:
        return DesertedShells(Counted(self), self.settings)

    def survey(self, folder: Path) -> list[ShellRecord]:
        assert folder == self.settings.shells_folder
        return list(self.shells)

    def renew(self, folder: Path) -> None:
        self.renewed += 1

    def forget(self, folder: Path, older_than_seconds: float) -> int:
        self.forgotten.append(older_than_seconds)
        return 0

    async def statuses(self) -> dict[str, str]:
        return {one.id: one.status.value for one in await self.store.shells.of_session("s")}


class Counted(Shells):
    """The rows, and which of its statements were sent."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.store.database)
        self._host = host

    async def record_many(self, seen: Any) -> None:
        if seen:
            self._host.statements.append("record")
        await super().record_many(seen)

    async def running_of(self, hostname: str) -> list[ShellRecord]:
        self._host.statements.append("running_of")
        return await super().running_of(hostname)

    async def mark_lost(self, ids: Any) -> list[str]:
        if ids:
            self._host.statements.append("mark_lost")
        return await super().mark_lost(ids)
