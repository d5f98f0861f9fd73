"""Ends what a body or a worker left running, wherever it went; each kill first makes sure whose process it is."""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from forge_tools.sandbox.launcher import descendants
from forge_tools.sandbox.marks import BOOT, EXECUTION, marks_of

PATIENCE = 2.0
"""Seconds after which a process that does not even hear KILL (it is stuck in the kernel) is given up."""

QUIET_LOOKS, QUIET_SECONDS = 2, 0.01
"""How often nothing must be found, and how long apart."""

_NEWBORN_SECONDS = 0.5
_KERNEL = 2  # the parent of the kernel's own threads, which have no environment either

_PR_SET_CHILD_SUBREAPER = 36


def _can_handle() -> bool:
    """Whether the kernel gives handles; Python may know them where it (or a sandbox around us) does not."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


_CAN_HANDLE = _can_handle()


class Quarry:
    """A process held by a handle, so that no signal meant for it reaches another that got its number."""

    def __init__(self, pid: int, handle: int | None = None) -> None:
        self.pid = pid
        self._handle = _open(pid) if handle is None else handle

    def send(self, number: int) -> bool:
        """Send a signal; return whether the process was still there to get it."""
        try:
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, number)
            elif not _CAN_HANDLE:
                os.kill(self.pid, number)
            else:
                return False
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def wait(self, seconds: float) -> None:
        """Wait until it has ended; where there are no handles, do not."""
        if self._handle >= 0:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            poll.poll(max(0.0, seconds) * 1000)

    def again(self) -> "Quarry":
        """Another hold of the same process, to be closed for itself."""
        return Quarry(self.pid, os.dup(self._handle) if self._handle >= 0 else -1)

    def close(self) -> None:
        """Let go of it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def end(mark: bytes, *, root: Quarry | None = None, spare: Collection[int] = ()) -> int:
    """End every process that carries `mark`, and `root` with all its descendants; return how many were ended.

    First all are stopped, until none is found that could still start another; then all are killed. This process, those in
    `spare` and those that carry the mark of another attempt live on. A process that cleared its environment *and* whose
    parents are gone is not found. Where there is no /proc only the process group of `root` is ended.
    """
    if sys.platform != "linux" or not _CAN_HANDLE:
        return _end_group(root)
    deadline = time.monotonic() + PATIENCE
    ended = quiet = 0
    while quiet < QUIET_LOOKS and time.monotonic() < deadline:
        found = _stop_all(mark, root, {os.getpid(), *spare}, deadline)
        for quarry in found:
            quarry.send(signal.SIGKILL)
        for quarry in found:
            quarry.wait(deadline - time.monotonic())
            quarry.close()
        ended += len(found)
        quiet = 0 if found or _is_anyone_between_programs() else quiet + 1
        if not found:
            time.sleep(QUIET_SECONDS)
    return ended


def marked_boots() -> set[str]:
    """The worker boots whose marks processes of this machine carry; none where there is no /proc."""
    if sys.platform != "linux":
        return set()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  as in `_look`
    prefix = f"{BOOT}=".encode()
    marks = {mark for pid in pids for mark in marks_of(pid)}
    return {mark.removeprefix(prefix).decode(errors="replace") for mark in marks if mark.startswith(prefix)}


def has_unmarked_descendants(pid: int) -> bool:
    """Whether something below that process cleared its environment, so that only its place in the tree tells whose it is."""
    ours = (f"{BOOT}=".encode(), f"{EXECUTION}=".encode())
    return any(not any(mark.startswith(ours) for mark in marks_of(process.pid)) for process in descendants(pid))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can leave our tree. On Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def bury_adopted() -> None:
    """Reap adopted processes that have ended.

    The kernel gives orphans to the main thread; those that a tool started belong to the thread that started them, and their
    status is the tool's to collect. So this is for processes whose main thread starts none.
    """
    with contextlib.suppress(OSError):  # a kernel may lack the list
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(pid), os.WNOHANG)


def _open(pid: int) -> int:
    if _CAN_HANDLE:
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return -1


def _stop_all(mark: bytes, root: Quarry | None, spare: Collection[int], deadline: float) -> list[Quarry]:
    found: dict[int, Quarry] = {}
    is_growing = True
    while is_growing and time.monotonic() < deadline:
        is_growing = False
        for quarry in _look(mark, root, {*spare, *found}):
            if quarry.send(signal.SIGSTOP):
                found[quarry.pid] = quarry
                is_growing = True
            else:
                quarry.close()
    return list(found.values())


def _look(mark: bytes, root: Quarry | None, known: Collection[int]) -> Iterator[Quarry]:
    if root is not None and root.send(0):
        yield from _tree(mark, root, known)
    for name in os.listdir("/proc"):  # noqa: PTH208  twice as fast, for hundreds of processes
        if name.isdigit() and int(name) not in known and mark in marks_of(int(name)):
            yield from _held_if(int(name), lambda pid: mark in marks_of(pid))


def _tree(mark: bytes, root: Quarry, known: Collection[int]) -> Iterator[Quarry]:
    if root.pid not in known and not _is_zombie(root.pid):
        yield root.again()
    family = {root.pid}
    for process in descendants(root.pid):
        if process.parent not in family or _is_of_another(process.pid, mark):
            continue
        family.add(process.pid)
        if process.pid not in known:
            yield from _held_if(process.pid, lambda pid: _parent(pid) in family)


def _held_if(pid: int, is_so: Callable[[int], bool]) -> Iterator[Quarry]:
    """Hold first and judge then: had the number become another's in between, the handle would not reach that one."""
    quarry = Quarry(pid)
    if is_so(pid) and not _is_zombie(pid):
        yield quarry
    else:
        quarry.close()


def _is_anyone_between_programs() -> bool:
    """Whether a process has just been forked and shows no environment: it is executing a program, and then shows its marks."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return any(
        not _environment(int(name)) and now - _born_at(int(name)) < _NEWBORN_SECONDS
        for name in os.listdir("/proc")  # noqa: PTH208  as above
        if name.isdigit()
    )


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b"?"  # gone, or not ours


def _born_at(pid: int) -> float:
    """On the clock that counts from the start of the machine; zombies and the kernel's threads count as old."""
    fields = _stat(pid)
    if fields[0] in (b"Z", b"X") or int(fields[1]) == _KERNEL:
        return 0.0
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _is_of_another(pid: int, mark: bytes) -> bool:
    """A body that is over may have left a process on purpose; it is not this attempt's to end."""
    is_attempt = mark.startswith(EXECUTION.encode())
    return is_attempt and any(m != mark and m.startswith(EXECUTION.encode()) for m in marks_of(pid))


def _stat(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return [b"X", b"0"]


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _is_zombie(pid: int) -> bool:
    return _stat(pid)[0] in (b"Z", b"X")


def _end_group(root: Quarry | None) -> int:
    if root is None or not root.send(0):
        return 0
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root.pid, signal.SIGKILL)
    return 1
