"""A shell that outlives the call that started it: what is known of it, on its host and in SQL."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

_HANDLE = re.compile(r"sh_(?P<host>[A-Za-z0-9._-]{1,200})_[0-9a-f]{12}")


class ShellStatus(StrEnum):
    """Where a shell is in its life. LOST: its host, or what supervised it there, is gone; how it ended is unknown."""

    RUNNING = "running"
    EXITED = "exited"
    KILLED = "killed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellRecord:
    """One shell. `id` is `sh_<host>_<12 hex digits>`; `cwd` is as people see it; `size` is the bytes it has written.

    `kernel` is the boot id of the host's kernel, `pid` and `start_ticks` are its supervisor's: together they name one
    process for ever, so that a number that was given out again is never taken for it.
    """

    id: str
    hostname: str
    command: str
    cwd: str
    status: ShellStatus
    kernel: str
    pid: int
    start_ticks: int
    started_at: datetime
    description: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    execution_id: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    size: int = 0
    ended_at: datetime | None = None


def shell_id(hostname: str, digits: str) -> str:
    """Compose the id of a shell on that host from twelve random hex digits."""
    return f"sh_{hostname}_{digits}"


def host_of(handle: object) -> str | None:
    """The host that a shell's id names; None for what is no such id."""
    found = _HANDLE.fullmatch(handle) if isinstance(handle, str) else None
    return found["host"] if found else None
