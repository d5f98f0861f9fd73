"""The shells that a call may know of: those of its session, on this host by their folders, elsewhere by the book."""

import asyncio
import signal
from pathlib import Path
from typing import Any

from forge_tools.errors import ForgeError, SandboxError
from forge_tools.model import ExecutionContext, ShellRecord, ShellStatus, host_of
from forge_tools.sandbox.reach import REACH
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.shells.host import find, survey
from forge_tools.sandbox.shells.start import hostname_of, shells_folder

SHELL_NOT_FOUND = "SHELL_NOT_FOUND"
SHELL_HOST_UNAVAILABLE = "SHELL_HOST_UNAVAILABLE"

HANDLE: dict[str, Any] = {"min_length": 1, "max_length": 256, "names_host": True}
"""What the id of a shell is held to, and that it names a host."""

_MAX_NAMED = 3
_MAX_LABEL = 60


class Shells:
    """What one call sees of them. Another session's shell looks exactly like none."""

    def __init__(self, context: ExecutionContext) -> None:
        self._reach = REACH.get()
        self._session = context.session_id
        self.hostname = hostname_of(self._reach)
        self.unknown: str | None = None
        """Why nothing is known of other hosts, once that was asked for in vain."""

    def folder(self, *, is_made: bool = False) -> Path:
        return shells_folder(self._reach, is_made=is_made)

    async def note(self, shell: ShellRecord) -> None:
        """Tell the book, where there is one."""
        if self._reach.book is not None:
            await self._reach.book.record(shell)

    def open(self, handle: str) -> ShellFolder | None:
        """Open the folder of a shell of this session on this host; None where there is none. Blocks for a moment."""
        shell = find(self.folder(), handle)
        if shell is not None and shell.session_id != self._session:
            shell.close()
            return None
        return shell

    async def elsewhere(self, handle: str) -> ShellRecord | None:
        """What the book says of a shell of this session that has no folder here."""
        shell = await self._reach.book.find(handle) if self._reach.book is not None else None
        return shell if shell is not None and shell.session_id == self._session else None

    async def all(self) -> list[ShellRecord]:
        """List the shells of this session, the oldest first. Of its own this host knows best."""
        here = await asyncio.to_thread(survey, self.folder())
        known: dict[str, ShellRecord] = {}
        if self._reach.book is not None:
            try:
                known = {shell.id: shell for shell in await self._reach.book.of_session(self._session)}
            except ForgeError as error:  # what is here can be told all the same
                self.unknown = error.message
        known |= {shell.id: shell for shell in here if shell.session_id == self._session}
        return sorted(known.values(), key=lambda shell: (shell.started_at, shell.id))

    async def refusal(self, handle: str) -> SandboxError:
        """Say why there is nothing to be read or ended here."""
        shell = await self.elsewhere(handle)
        if shell is None:
            return await self._not_found(handle)
        if host_of(handle) == self.hostname:
            what = f"What is kept of {named(shell)} on host {self.hostname} is gone; the last that was known: {shell.status}"
            return SandboxError(what, SHELL_NOT_FOUND)
        if shell.status is ShellStatus.LOST:
            what = f"{named(shell)} is lost, with what it wrote: host {shell.hostname} is gone, or was started again"
            return SandboxError(what, SHELL_HOST_UNAVAILABLE)
        what = f"{named(shell)} is on host {shell.hostname}; this call reached {self.hostname}. "
        what += f"Send it to a worker of {shell.hostname}: its queue is host.{shell.hostname}"
        return SandboxError(what, SHELL_HOST_UNAVAILABLE)

    async def _not_found(self, handle: str) -> SandboxError:
        running = [shell for shell in await self.all() if shell.status is ShellStatus.RUNNING]
        shown = ", ".join(map(named, running[-_MAX_NAMED:]))
        more = f" and {len(running) - _MAX_NAMED} more; see ListShells" if len(running) > _MAX_NAMED else ""
        tail = f"Running: {shown}{more}" if running else "None is running"
        return SandboxError(f"No shell {_brief(handle)} in this session. {tail}", SHELL_NOT_FOUND)


def label(shell: ShellRecord) -> str:
    """What a person would call it: its description, else the start of its command."""
    text = " ".join((shell.description or shell.command).split())
    return text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 3]}..."


def named(shell: ShellRecord) -> str:
    """Its id, and what it is."""
    return f"{shell.id} ({label(shell)})"


def exit_of(shell: ShellRecord) -> str | None:
    """How its command ended, where that is known: `exit code 1`, `SIGTERM`."""
    if shell.signal is not None:
        return signal_name(shell.signal)
    return None if shell.exit_code is None else f"exit code {shell.exit_code}"


def state_of(shell: ShellRecord) -> str:
    """`running`, `exited with exit code 1`, ..."""
    how = exit_of(shell)
    if shell.status is ShellStatus.LOST:
        return "lost: what supervised it vanished, so how it ended is unknown"
    if shell.status is ShellStatus.RUNNING:
        return f"the command itself ended with {how}, what it started is running" if how else "running"
    return f"{shell.status} with {how}" if how else str(shell.status)


def signal_name(number: int) -> str:
    """`SIGTERM`; `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _brief(handle: str) -> str:
    text = handle if len(handle) <= 80 else f"{handle[:77]}..."
    return text if text.isprintable() else ascii(text)
