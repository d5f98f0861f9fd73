"""Where things are: the queues of hosts, workspaces by name, shells that outlive the calls that started them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

HOST_PREFIX = "host."
_HANDLE = re.compile(r"sh_(?P<host>[A-Za-z0-9._-]{1,200})_[0-9a-f]{12}")


def host_queue(hostname: str) -> str:
    """The queue of one host: each worker there serves it beside its own queues, and nobody else does."""
    return f"{HOST_PREFIX}{hostname}"


def serving_command(queue: str, lane: str) -> str:
    """What to type to get `queue` served in that lane, and where, if that matters."""
    if queue.startswith(HOST_PREFIX):
        return f"on host {queue.removeprefix(HOST_PREFIX)}: forge-tools worker --lane {lane}"
    return f"forge-tools worker --lane {lane} --queues {queue}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWorkspace:
    """What one worker has under a name. `roots` are its folders as people may see them."""

    name: str
    is_shared: bool
    roots: tuple[str, ...]

    def clashes_with(self, other: "NamedWorkspace") -> bool:
        """Whether two hosts cannot have both: the names are the same, and they are not shared."""
        return self.name == other.name and not (self.is_shared and other.is_shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRecord(NamedWorkspace):
    """A workspace as one instance announced it. It is not `is_live` once that instance has stopped, or is silent for too long."""

    instance: str
    hostname: str
    is_live: bool
    has_stopped: bool
    silent_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspacePlaces:
    """Where the known workspaces are: the host of each one that is bound, None for those that are shared.

    `has_sessions` tells whether any session has a workspace of its own.
    """

    hosts: Mapping[str, str | None] = field(default_factory=dict)
    has_sessions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A claimed call that was not run here: its row now waits in `queue`, as if it had never been claimed."""

    queue: str
    hostname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """A claimed call that can go nowhere, and why, as a sentence. It is still this worker's."""

    why: str


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
