"""All shells of a host: looked at, kept alive, forgotten when they are over; and what they use."""

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forge_tools.model import ShellRecord, ShellStatus, host_of
from forge_tools.sandbox.paths.confinement import OPEN_FOLDER
from forge_tools.sandbox.processes.trees import Process, families, start_ticks
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.shells.supervisor import STATUS

_STARTING_SECONDS = 60.0
_MAX_FOLDERS = 8
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_LISTENING = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_MAX_HANDLES = 4096  # of one process; a server with more connections than that opened its port before them

# Of each folder the shells that are over: what they were does not change, and a host keeps many for days.
_over: dict[Path, dict[str, tuple[tuple[int, ...] | None, ShellRecord]]] = {}


def survey(folder: Path) -> list[ShellRecord]:
    """Say of each shell of this host what its folder says, the oldest first.

    One whose supervisor is gone without having said how it ended becomes LOST, for ever, and what it left running is ended:
    that may take a second, so call this on a thread.
    """
    known, over, records = _over.get(folder, {}), {}, []
    for name in _names(folder):
        identity, kept = _identity(folder, name), known.get(name)
        if kept is None or kept[0] != identity:
            shell = find(folder, name)
            if shell is None:
                continue
            with shell:
                kept = identity, shell.record()
        records.append(kept[1])
        if identity is not None and kept[1].status is not ShellStatus.RUNNING:
            over[name] = kept
    if len(_over) >= _MAX_FOLDERS:
        _over.clear()
    _over[folder] = over
    return sorted(records, key=lambda record: (record.started_at, record.id))


def renew(folder: Path) -> None:
    """Renew the leases of all shells: a supervisor whose lease nobody renews for so long as it was given ends its shell."""
    for shell in each(folder):
        shell.renew()


def forget(folder: Path, older_than_seconds: float) -> int:
    """Remove what is kept of shells that ended at least so long ago; return how many were forgotten."""
    oldest = time.time() - older_than_seconds
    forgotten = 0
    for shell in each(folder):
        if shell.is_whole:
            record = shell.record()
            is_old = record.ended_at is not None and record.ended_at.timestamp() <= oldest
        else:  # whoever started it was killed on the way
            is_old = os.fstat(shell.fd).st_mtime <= min(oldest, time.time() - _STARTING_SECONDS)
        if is_old:
            shutil.rmtree(folder / shell.id, ignore_errors=True)
            forgotten += 1
    return forgotten


def find(folder: Path, id: str) -> ShellFolder | None:
    """Open the folder of a shell that has been started on this host; None where there is none. Close it."""
    shell = _open(folder, id)
    if shell is not None and not shell.is_whole:
        shell.close()
        return None
    return shell


def each(folder: Path) -> Iterator[ShellFolder]:
    """Open the shells of a folder one after the other."""
    for name in _names(folder):
        shell = _open(folder, name)
        if shell is not None:
            with shell:
                yield shell


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  names are all that is wanted
    except OSError:
        return []


def _identity(folder: Path, name: str) -> tuple[int, ...] | None:
    """What says that a shell's status is the one that was read before; None where there is none."""
    try:
        seen = os.stat(f"{folder}/{name}/{STATUS}", follow_symlinks=False)  # noqa: PTH116  a host keeps thousands
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def _open(folder: Path, id: str) -> ShellFolder | None:
    """Open by a name that can be no path: only the form of an id is accepted."""
    if host_of(id) is None:
        return None
    try:
        return ShellFolder(os.open(folder / id, OPEN_FOLDER | os.O_NOFOLLOW), id)
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Usage:
    """Of all the living processes of a shell, its supervisor left out; `cpu_s` counts those that have ended too.

    `ports` are those of TCP that they listen on.
    """

    processes: int
    rss_bytes: int
    cpu_s: float
    ports: tuple[int, ...] = ()


def usage_of(shells: Sequence[ShellRecord]) -> dict[str, Usage]:
    """Look at the running shells among these, with one look at the processes of the host; by id."""
    children = families()
    return {
        shell.id: _usage(shell.pid, children)
        for shell in shells
        if shell.status is ShellStatus.RUNNING and start_ticks(shell.pid) == shell.start_ticks
    }


def _usage(supervisor: int, children: Mapping[int, Sequence[Process]]) -> Usage:
    tree = list(children.get(supervisor, ()))
    for process in tree:
        tree.extend(children.get(process.pid, ()))
    # What a supervisor has reaped is on its own account; what it uses itself is not the shell's.
    ticks = _ticks(supervisor, slice(13, 15)) + sum(_ticks(process.pid, slice(11, 15)) for process in tree)
    pids = [process.pid for process in tree]
    return Usage(len(pids), sum(map(_pages, pids)) * _PAGE, round(ticks / _TICKS, 2), listening_ports(pids))


def _pages(pid: int) -> int:
    with suppress(OSError):  # gone by now, or no /proc here
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return 0


def _ticks(pid: int, fields: slice) -> int:
    with suppress(OSError):  # as above
        return sum(map(int, Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[fields]))
    return 0


def listening_ports(pids: Iterable[int]) -> tuple[int, ...]:
    """List the ports that any of these processes listens on, in whatever network each of them is."""
    found: set[int] = set()
    for pid in pids:
        if sockets := set(_sockets(pid)):
            found.update(port for port, inode in _listeners(pid) if inode in sockets)
    return tuple(sorted(found))


def _sockets(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):  # gone by now, somebody else's, or no /proc here
        for number in sorted(os.listdir(folder), key=int)[:_MAX_HANDLES]:  # noqa: PTH208  names are all that is wanted
            with suppress(OSError):
                if found := _SOCKET.fullmatch(os.readlink(f"{folder}/{number}")):  # noqa: PTH115  thousands of them
                    yield found[1]


def _listeners(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the port and the inode of each socket that listens in the network of a process."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):  # as above; or no IPv6
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING:
                    yield int(fields[1].rpartition(":")[2], 16), fields[9]
