"""How much memory a tool may take in the process lane: a limit its process runs into, and a look at its whole tree."""

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from forge_tools.sandbox.processes.trees import descendants

PAGE = os.sysconf("SC_PAGE_SIZE")


def limit_this_process(size: int) -> None:
    """Let an allocation beyond `size` bytes raise MemoryError, here and in each process started from here.

    The limit is a soft one, so a program that reserves more than it uses can be started with `ulimit -d unlimited`.
    """
    if size and sys.platform == "linux":  # elsewhere it does not count what Python allocates
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (size if hard < 0 else min(size, hard), hard))


def heavy(pids: Sequence[int], limit: int) -> list[int]:
    """Those processes that with their descendants hold more than `limit` bytes of real memory."""
    return [pid for pid in pids if _resident([pid, *(process.pid for process in descendants(pid))], limit) > limit]


def _resident(tree: Sequence[int], limit: int) -> int:
    """What forked processes share counts once: looking that up costs milliseconds, so only where the quick sum is too much."""
    quick = sum(_pages(pid) for pid in tree) * PAGE
    return quick if quick <= limit else sum(_share(pid) for pid in tree)


def _pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:  # gone, or no /proc
        return 0


def _share(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return _pages(pid) * PAGE
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
