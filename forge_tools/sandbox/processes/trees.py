"""Process trees: what descends from what, and the marks of each. The standard library alone: launchers load little."""

import contextlib
import os
import select
import signal
from collections import namedtuple
from collections.abc import Collection, Iterator

from forge_tools.sandbox.walls.cgroups import LIMITS
from forge_tools.sandbox.walls.privileges import ON_LINUX, prctl

INSTANCE = "FORGE_INSTANCE"
EXECUTION = "FORGE_EXECUTION"
SHELL = "FORGE_SHELL"
"""The variable that everything of a shell carries which outlives its call."""

MARKS = (INSTANCE, EXECUTION, SHELL, LIMITS)
"""Variables of ours that are no settings."""

OWNERS = (f"{INSTANCE}=".encode(), f"{EXECUTION}=".encode())
"""How the marks begin that tie a process to a worker or an attempt."""

KEEPS = "keeper."
"""How the value of `SHELL` begins in programs that keep shells, and in the supervisors that they fork."""

_MARKED = (*OWNERS, f"{SHELL}=".encode())
_KEEPER = f"{SHELL}={KEEPS}".encode()
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Whether the kernel does (CONFIG_PROC_CHILDREN); else each question reads the whole process table."""
_SET_CHILD_SUBREAPER = 36


class Process(namedtuple("Process", ("pid", "parent", "group", "ticks"), defaults=(0,))):  # typing takes milliseconds
    """One line of the process table. `ticks` says when it started; ps does not tell."""

    __slots__ = ()
    pid: int
    parent: int
    group: int
    ticks: int


class Signals:
    """Signals as something to wait for beside handles; each process that waits makes its own."""

    def __init__(self, *numbers: signal.Signals) -> None:
        signal.set_wakeup_fd(-1)  # a fork would still write to the pipe of its parent
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        for number in numbers:
            signal.signal(number, lambda *_: None)  # only of handled signals does Python write the number
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
    prctl(_SET_CHILD_SUBREAPER, 1)


def reap(child: int) -> tuple[bool, int | None]:
    """Reap ended children, adopted ones too; return whether any is left, and the wait status of `child` if it ended."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False, code
        if pid == 0:
            return True, code
        if pid == child:
            code = status


def descendants(ancestor: int, *, with_shells: bool = False) -> list[Process]:
    """List the living descendants of a process, nearest first. Zombies are left out.

    So are programs that keep shells which outlive their calls, with all that is below them. The kernel's own lists of
    children are read, so that a busy machine costs no more; a child may be missing while a sibling of it ends.
    """
    all_families = {} if _LISTS_CHILDREN else families()
    found = [Process(ancestor, 0, 0)]
    for process in found:
        listed = map(process_of, child_pids(process.pid)) if _LISTS_CHILDREN else all_families.get(process.pid, ())
        found.extend(child for child in listed if child and (with_shells or not is_keeper(marks_of(child.pid))))
    return found[1:]


def families() -> dict[int, list[Process]]:
    """Return the living processes of this machine by their parents."""
    children: dict[int, list[Process]] = {}
    for process in process_table():
        children.setdefault(process.parent, []).append(process)
    return children


def start_ticks(pid: int) -> int:
    """Return when a process started, in ticks since the host did; 0 if it has ended, or that is unknown."""
    process = process_of(pid)
    return 0 if process is None else process.ticks


def is_keeper(marks: Collection[bytes]) -> bool:
    """Whether a process with these marks keeps or supervises shells that outlive their calls: nobody else may end it.

    A process with the mark of a shell alone is not spared: below its supervisor no search meets it, and elsewhere
    nobody watches it. Nor is one that belongs to a worker or an attempt, whatever else it claims.
    """
    is_owned = any(mark.startswith(OWNERS) for mark in marks)
    return not is_owned and any(mark.startswith(_KEEPER) for mark in marks)


def marks_of(pid: int) -> frozenset[bytes]:
    """Return the marks that a process carries; none if it is gone or another user's."""
    return marks_in(environment_of(pid))


def marks_in(environment: bytes) -> frozenset[bytes]:
    """Return the marks among the variables in the `environ` file of a process, which `Marking` pads with zeros."""
    variables = environment.rstrip(b"\0").split(b"\0")
    return frozenset(one for one in variables if one.startswith(_MARKED))


def environment_of(pid: int) -> bytes:
    """Return the content of that file: empty while the process executes a program, a question mark if it is gone.

    Of a process that is closed to us, or another user's, return the arguments: `Forker` puts the marks there, too.
    """
    for name in ("environ", "cmdline"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                return file.read() or (b"" if name == "environ" else b"?")
        except PermissionError:
            continue
        except OSError:
            break
    return b"?"


def process_of(pid: int) -> Process | None:
    """Return one line of the table; None if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, parentheses too.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state, parent, group = fields[:3]
    return None if state in (b"Z", b"X") else Process(pid, int(parent), int(group), int(fields[19]))


def process_table() -> Iterator[Process]:
    """Yield the living processes of this machine, those with high numbers first, which are mostly the newest."""
    if not ON_LINUX:
        yield from process_table_of_ps()
        return
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
        if process := process_of(pid):
            yield process


def child_pids(pid: int, thread: int = 0) -> list[int]:
    """Return the children of a process or one thread of it, ended ones too; none if the kernel keeps no lists of them."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it ended meanwhile
        for task in [thread] if thread else os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def process_table_of_ps() -> Iterator[Process]:
    """Yield the same from `ps`, where there is no /proc; it does not say when they started."""
    with os.popen("ps -axo pid=,ppid=,pgid=,state=") as table:  # noqa: S605,S607  constant text; no /proc here
        for line in table:
            pid, parent, group, state = line.split()[:4]
            if not state.startswith("Z"):
                yield Process(int(pid), int(parent), int(group))
