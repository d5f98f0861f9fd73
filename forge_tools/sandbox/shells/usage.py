"""What running shells use of their host."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forge_tools.records import ShellRecord, ShellStatus
from forge_tools.sandbox.shells.listening import listening_ports
from forge_tools.sandbox.trees import Process, families, start_ticks

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


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
