"""Keeps the rows of shells true to their host, and gives up those of hosts that have no worker any more."""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from forge_tools.config import Settings
from forge_tools.errors import ForgeError, SandboxError, UnstorableRowError
from forge_tools.model.places import ShellRecord, ShellStatus
from forge_tools.sandbox.processes.trees import start_ticks
from forge_tools.sandbox.shells.host import forget, renew, survey
from forge_tools.sandbox.shells.supervisor import kernel_id
from forge_tools.storage.shells import Shells
from workers.services.service import Service

LOCK = "watch.lock"
CHECK_SECONDS = 60.0
"""How often rows are compared with what is there, leases renewed and old shells forgotten."""
SIZE_SECONDS = 30.0
"""How often a row is updated if its shell only wrote output."""
COMPLAINT_SECONDS = 600.0
NEVER = float("-inf")

Found = TypeVar("Found")

logger = logging.getLogger(__name__)


class ShellWatch(Service):
    """Reports this host's shells to SQL. Of all workers that share their folder, one does.

    It costs a worker without shells a check of an empty folder, and no statement.
    """

    name = "shells"
    failure = "Shells cannot be recorded"
    starts_at_once = True

    def __init__(self, shells: Shells, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings.shell_interval)
        self._shells = shells
        self._folder = settings.shells_folder
        self._hostname = settings.hostname
        self._kept = settings.shell_kept
        self._clock = clock
        self._lock: int | None = None
        self._told: dict[str, tuple[ShellRecord, float]] = {}
        self._checked_at = NEVER
        self._complaint = ("", NEVER)

    async def step(self) -> None:
        """Check; log problems now and then, not every two seconds."""
        try:
            await self.check()
        except (ForgeError, OSError) as error:
            self._checked_at = NEVER  # in an outage others may have given our shells up
            self._complain(str(error))

    async def check(self) -> None:
        """Report changes since the last check. Now and then compare what is reported as running with what is there."""
        if not self._may_watch():
            self._told, self._checked_at = {}, NEVER  # if the watching worker dies, this one begins
            return
        is_first = self._checked_at == NEVER
        is_due = is_first or (bool(self._told) and self._clock() - self._checked_at >= CHECK_SECONDS)
        runs = any(shell.status == ShellStatus.RUNNING for shell, _ in self._told.values())
        if is_due:  # before anything else: an outage of the database, however long, is no reason for shells to end
            await self._in_folder(renew)
        # Asked before the check, so that whatever is reported as running has its folder by then.
        said = await self._shells.running_of(self._hostname) if is_first or (is_due and runs) else None
        seen = self._own(await self._in_folder(survey))
        await self._tell(seen, said)
        if said is not None:
            await self._miss(said, seen)
        if is_due:
            self._checked_at = self._clock()
            await self._in_folder(partial(forget, older_than_seconds=self._kept))
        here = {shell.id for shell in seen}
        vanished = [self._told.pop(id_)[0] for id_ in list(self._told) if id_ not in here]
        if any(shell.status == ShellStatus.RUNNING for shell in vanished):
            self._checked_at = NEVER

    async def _in_folder(self, work: Callable[[Path], Found]) -> Found:
        """Do blocking work in the folder of the shells. What runs there may write anything; that must end no worker."""
        try:
            return await asyncio.to_thread(work, self._folder)
        except Exception as error:
            raise SandboxError(f"The shells in {self._folder} cannot be read: {error!r}") from error

    def _may_watch(self) -> bool:
        """Hold the lock of the folder, which the kernel drops with us; without a folder there is none to hold."""
        if self._lock is not None or not self._folder.is_dir():
            return True
        lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except OSError:  # a file system without locks: several watch, and report the same
            pass
        self._lock = lock
        return True

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _own(self, seen: Sequence[ShellRecord]) -> Sequence[ShellRecord]:
        """Return those that this host started under its current name: calls go to the other, which may be given up."""
        own = [shell for shell in seen if shell.hostname == self._hostname]
        if len(own) < len(seen):
            other = next(shell.hostname for shell in seen if shell.hostname != self._hostname)
            self._complain(
                f"{len(seen) - len(own)} shells of host {other} are in {self._folder}, but no call reaches them. "
                f"Give host {self._hostname} its old FORGE_HOSTNAME until they have ended, or end them by hand."
            )
        return own

    async def _tell(self, seen: Sequence[ShellRecord], said: Sequence[ShellRecord] | None) -> None:
        """Write what is new, and shells that live although SQL says otherwise: given up while this host was away."""
        now = self._clock()
        given_up = set[str]()
        if said is not None:
            given_up = {shell.id for shell in seen if shell.status == ShellStatus.RUNNING}.difference(
                s.id for s in said
            )
        news = [shell for shell in seen if shell.id in given_up or self._is_new(shell, now)]
        await self._write(news)
        self._told.update({shell.id: (shell, now) for shell in news})

    async def _write(self, news: Sequence[ShellRecord]) -> None:
        """Write them all, or all except those that the database refuses."""
        try:
            await self._shells.record_many(news)
        except UnstorableRowError as error:
            if len(news) == 1:
                self._complain(f"{news[0].id}: {error.message}")
                return
            for shell in news:
                await self._write([shell])

    def _is_new(self, shell: ShellRecord, now: float) -> bool:
        last, told_at = self._told.get(shell.id, (None, NEVER))
        if last is None or last.status != shell.status:
            return True
        return last.size != shell.size and now - told_at >= SIZE_SECONDS

    async def _miss(self, said: Sequence[ShellRecord], seen: Sequence[ShellRecord]) -> None:
        here = {shell.id for shell in seen}
        missing = [shell for shell in said if shell.id not in here]
        gone = [shell.id for shell in missing if not _is_alive(shell)]
        if lost := await self._shells.mark_lost(gone):
            logger.warning("Shells are gone, and how they ended is unknown", extra={"shells": lost})
        if len(gone) < len(missing):
            self._complain(
                f"{len(missing) - len(gone)} shells of host {self._hostname} run, but are not in {self._folder}. "
                "Give all workers of a host the same FORGE_SHELLS, and each host its own FORGE_HOSTNAME."
            )

    def _complain(self, what: str) -> None:
        last, said_at = self._complaint
        if what != last or self._clock() - said_at >= COMPLAINT_SECONDS:
            self._complaint = (what, self._clock())
            logger.warning("Shells cannot be recorded", extra={"error": what})


class DesertedShells(Service):
    """Gives up the shells of hosts that have no worker any more, after two bad checks; one worker does it for all."""

    name = "deserted shells"
    failure = "Shells cannot be recorded"
    leader_only = True
    starts_at_once = True

    def __init__(self, shells: Shells, settings: Settings) -> None:
        super().__init__(settings.shell_lost_after / 4)
        self._shells = shells
        self._lost_after = settings.shell_lost_after
        self._suspects: set[str] = set()

    async def step(self) -> None:
        """Mark shells as lost whose host had no worker at two checks in a row.

        A clock that was set, and an outage after which nobody has sent a heartbeat yet, look the same once.
        """
        suspects = await self._shells.deserted_hosts(self._lost_after)
        lost = await self._shells.desert(suspects & self._suspects, self._lost_after)
        self._suspects = suspects
        if lost:
            logger.warning("Their host no longer has a worker; these shells are lost", extra={"shells": lost})

    def lead_is_lost(self) -> None:
        self._suspects = set()


def _is_alive(shell: ShellRecord) -> bool:
    started = start_ticks(shell.pid)
    return started != 0 and (shell.kernel, shell.start_ticks) == (kernel_id(), started)
