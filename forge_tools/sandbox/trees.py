"""Process trees: who descends from whom, and how all of it is ended. The standard library alone: launchers load little."""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence

SHELL = "FORGE_SHELL"
"""The variable that everything of a shell carries which outlives its call."""

KEEPS = "keeper."
"""How its value begins in programs that keep shells, and in the supervisors that they fork."""

_KEEPER = f"{SHELL}={KEEPS}".encode()
_ON_LINUX = sys.platform.startswith("linux")
_PR_SET_CHILD_SUBREAPER = 36
_UNKILLABLE = 10.0  # seconds of KILL after which a process stuck in the kernel is given up

prctl: Callable[..., int] = ctypes.CDLL(None).prctl if _ON_LINUX else lambda *_: 0


class Process(namedtuple("Process", ("pid", "parent", "group"))):  # to import typing takes milliseconds
    """One line of the process table."""

    __slots__ = ()
    pid: int
    parent: int
    group: int


class Ending:
    """Ends a tree step by step: asks the command's group, and all once that is over, then kills what is left.

    Asking all at once would not let a worker end its tools, nor a shell script its children.
    """

    def __init__(self, deadline: float, number: int = signal.SIGTERM) -> None:
        self._deadline = deadline
        self._number = number
        self._asked: set[int] = set()

    def again(self, deadline: float, number: int) -> None:
        """Ask once more, with another signal perhaps; a deadline never moves back."""
        self._deadline = min(self._deadline, deadline)
        self._number = number
        self._asked.clear()

    def step(self, tree: Sequence[Process], group: int, *, is_over: bool) -> float | None:
        """Do what is due; return the seconds until the next step, None when it is no use to go on."""
        now = time.monotonic()
        if now > self._deadline + _UNKILLABLE:
            return None
        if now >= self._deadline:
            kill_all(tree)
            return 0.005
        asking = {process.pid for process in tree if is_over or process.group == group} - self._asked
        for pid in asking:
            kill(pid, self._number)
            kill(pid, signal.SIGCONT)  # a stopped process hears nothing but this and KILL
        self._asked |= asking
        return min(0.05, self._deadline - now)


class Signals:
    """Signals as something to wait for beside handles; each process that waits makes its own."""

    def __init__(self, *numbers: signal.Signals) -> None:
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        for number in numbers:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def wait(self, seconds: float | None, *handles: int) -> tuple[list[int], bytes]:
        """Return which handles have something to read (negative ones never have), and the numbers of the signals that came."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        for handle in handles:
            if handle >= 0:
                poll.register(handle, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(None if seconds is None else max(0, seconds) * 1000)]
        received = os.read(self._read, 4096) if self._read in ready else b""
        return [fd for fd in ready if fd != self._read], received


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can leave our tree. On Linux only."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(ended: Callable[[int, int], object]) -> bool:
    """Collect every child that has ended, adopted ones too: `ended` is told its pid and wait status. Is any child left?"""
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        ended(pid, code)


def descendants(ancestor: int, *, with_shells: bool = False) -> list[Process]:
    """List the living descendants of a process, nearest first. Zombies are left out.

    So are programs that keep shells which outlive their calls, with all that is below them.
    """
    children = families()
    found = [Process(ancestor, 0, 0)]
    for process in found:
        below = children.get(process.pid, ())
        found.extend(child for child in below if with_shells or not keeps_shells(child.pid))
    return found[1:]


def families() -> dict[int, list[Process]]:
    """The living processes of this machine by their parents."""
    children: dict[int, list[Process]] = {}
    for process in _process_table():
        children.setdefault(process.parent, []).append(process)
    return children


def kill_all(tree: Sequence[Process]) -> None:
    """Kill processes and their groups: a group dies in one stroke, so that nothing in it can fork away."""
    for group in {process.group for process in tree} - {os.getpgrp(), 0}:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for process in tree:
        kill(process.pid, signal.SIGKILL)


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone, or not ours to signal."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def start_ticks(pid: int) -> int:
    """When a process started, in ticks since the host did; 0 where it is over, or nobody can tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  pathlib costs the start-up 10 ms
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def keeps_shells(pid: int) -> bool:
    """Whether a process keeps shells that outlive their calls, or supervises one: it is nobody's to end but its own.

    What only carries the mark of a shell is not spared: below a supervisor nobody meets it, and elsewhere nobody watches
    it. Nor is what belongs to a worker or an attempt, whatever else it says.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  as above
            variables = file.read().split(b"\0")
    except OSError:
        return False
    if any(variable.startswith((b"FORGE_BOOT=", b"FORGE_EXECUTION=")) for variable in variables):
        return False
    return any(variable.startswith(_KEEPER) for variable in variables)


def _process_table() -> Iterator[Process]:
    if not _ON_LINUX:
        yield from _process_table_of_ps()
        return
    for name in os.listdir("/proc"):  # noqa: PTH208  as above
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123  as above
                # The name in parentheses may hold anything, parentheses too.
                state, parent, group = file.read().rpartition(b")")[2].split()[:3]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            yield Process(int(name), int(parent), int(group))


def _process_table_of_ps() -> Iterator[Process]:
    with os.popen("ps -axo pid=,ppid=,pgid=,state=") as table:  # noqa: S605,S607  constant text; no /proc here
        for line in table:
            pid, parent, group, state = line.split()[:4]
            if not state.startswith("Z"):
                yield Process(int(pid), int(parent), int(group))
