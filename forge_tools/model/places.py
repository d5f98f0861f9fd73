"""Where things are: the queues of hosts, workspaces by name, and shells that outlive the calls that started them."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

HOST_PREFIX = "host."
_HANDLE = re.compile(r"sh_(?P<host>[A-Za-z0-9._-]{1,200})_[0-9a-f]{12}")


def host_queue(hostname: str) -> str:
    """Return the queue of one host: every worker on that host, and no other, serves it beside its own queues."""
    return f"{HOST_PREFIX}{hostname}"


def serving_command(queue: str, lane: str) -> str:
    """Return the command that gets `queue` served in that lane, and the host if that matters."""
    if queue.startswith(HOST_PREFIX):
        return f"on host {queue.removeprefix(HOST_PREFIX)}: forge-tools worker --lane {lane}"
    return f"forge-tools worker --lane {lane} --queues {queue}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWorkspace:
    """What one worker offers under a name. `roots` are its folders as people may see them."""

    name: str
    is_shared: bool
    roots: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRecord(NamedWorkspace):
    """A workspace as one instance announced it. `is_live` is false once that instance stopped or fell silent."""

    instance: str
    hostname: str
    is_live: bool
    has_stopped: bool
    silent_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A claimed call that was not run here: its row waits in `queue` again, as if never claimed."""

    queue: str
    hostname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """A claimed call that can go nowhere, and the reason as a sentence. This worker still owns it."""

    why: str


class ShellStatus(StrEnum):
    """The state of a shell. LOST: its host or its supervisor there is gone, and how it ended is unknown."""

    RUNNING = "running"
    EXITED = "exited"
    KILLED = "killed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellRecord:
    """One shell. `id` is `sh_<host>_<12 hex digits>`; `cwd` is as people see it; `size` counts the bytes it has written.

    `kernel` is the boot id of the host's kernel; `pid` and `start_ticks` belong to its supervisor. Together they
    identify one process for ever, so a reused pid is never mistaken for it.
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
    """Return the host that a shell's id names; None for anything else."""
    found = _HANDLE.fullmatch(handle) if isinstance(handle, str) else None
    return found["host"] if found else None
