"""Ends processes: a tree step by step, and what a body or a worker left running, wherever it went.

Standard library only: launchers load little.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from forge_tools.sandbox.processes.trees import (
    EXECUTION,
    INSTANCE,
    OWNERS,
    Process,
    child_pids,
    descendants,
    environment_of,
    is_keeper,
    marks_in,
    marks_of,
    process_of,
    process_table,
    start_ticks,
)
from forge_tools.sandbox.walls.cgroups import Cgroup

PATIENCE = 2.0
"""Seconds after which a process that ignores even KILL (it is stuck in the kernel) is given up."""

LONGEST = 20.0
"""How many seconds to follow processes that start others faster than a busy machine can find them."""

QUIET_SEARCHES, QUIET_SECONDS = 2, 0.01
"""How many searches of a tree must find nothing, and their interval; of the whole machine one, if it never found any."""

FORK_BOMB_SEARCHES = 5
"""How many, if new ones appeared after all were killed: a slow search may miss one that lives only briefly."""

_UNKILLABLE = 10.0  # seconds of KILL after which a process stuck in the kernel is given up
_NEWBORN_SECONDS = 0.5
_ATTEMPT = f"{EXECUTION}=".encode()
_KERNEL = 2  # the parent of the kernel's own threads, which have no environment either


def _can_handle() -> bool:
    """Whether the kernel provides process handles: it, or a sandbox around us, may lack them although Python has them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


_CAN_HANDLE = _can_handle()


class Ending:
    """Ends a tree step by step: signals the command's group, then all once that is over, then kills what is left.

    Signalling all at once would prevent a worker from ending its tools, or a shell script its children.
    """

    def __init__(self, deadline: float, number: int = signal.SIGTERM, *, group: Cgroup) -> None:
        self._deadline = deadline
        self._number = number
        self._group = group
        self._asked: set[int] = set()

    def again(self, deadline: float, number: int) -> None:
        """Signal once more, perhaps with another signal; a deadline never moves back."""
        self._deadline = min(self._deadline, deadline)
        self._number = number
        self._asked.clear()

    def step(self, tree: Sequence[Process], group: int, *, is_over: bool) -> float | None:
        """Do what is due; return the seconds until the next step, None when continuing is pointless."""
        now = time.monotonic()
        if now > self._deadline + _UNKILLABLE:
            return None
        if now >= self._deadline:
            self._group.kill()
            kill_all(tree)
            return 0.005
        asking = {process.pid for process in tree if is_over or process.group == group} - self._asked
        for pid in asking:
            kill(pid, self._number)
            kill(pid, signal.SIGCONT)  # a stopped process reacts only to this and KILL
        self._asked |= asking
        return min(0.05, self._deadline - now)


def kill_all(tree: Sequence[Process]) -> None:
    """Kill processes and their groups: a group dies at once, so that nothing in it can fork away."""
    for group in {process.group for process in tree} - {os.getpgrp(), 0}:  # 0 would mean our own, too
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for process in tree:
        kill(process.pid, signal.SIGKILL)


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone or not ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class ProcessHandle:
    """A process held by a handle, so that no signal meant for it reaches another process with a reused pid."""

    def __init__(self, pid: int, handle: int | None = None) -> None:
        self.pid = pid
        self._handle = -1 if handle is None else handle
        if handle is None and _CAN_HANDLE:
            with contextlib.suppress(OSError):
                self._handle = os.pidfd_open(pid)

    def send(self, number: int) -> bool:
        """Send a signal; return whether the process still existed."""
        try:
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, number)
            elif not _CAN_HANDLE:
                os.kill(self.pid, number)
            else:
                return False  # it was gone before it could be held
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def wait(self, seconds: float) -> None:
        """Wait until it has ended; without handles, return at once."""
        if self._handle >= 0:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            poll.poll(max(0.0, seconds) * 1000)

    def again(self) -> "ProcessHandle":
        """Return a second handle of the same process, to be closed separately."""
        return ProcessHandle(self.pid, os.dup(self._handle) if self._handle >= 0 else -1)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def end(
    mark: bytes,
    *,
    root: ProcessHandle | None = None,
    within: ProcessHandle | None = None,
    started: Mapping[int, int] | None = None,
    spare: Collection[int] = (),
) -> int:
    """End every process that carries `mark`, and `root` with all its descendants; return how many were ended.

    First all are stopped, until none is found that could still start another; then all are killed. `within` adopts its
    orphans, so that while it lives only its tree is searched; else the whole machine is. `started` gives further
    processes by their `start_ticks`. A process ends if its parent ends and, with the mark of an attempt, if a member of
    its group ends. This process, those in `spare` and those that carry the mark of another attempt live on. Without
    /proc only the process group of `root` is ended.
    """
    if sys.platform != "linux" or not _CAN_HANDLE:
        if root is None or not root.send(0):
            return 0
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(root.pid, signal.SIGKILL)
        return 1
    search = _Search(mark, root, within, started or {}, {os.getpid(), *spare})
    limit, deadline = (time.monotonic() + seconds for seconds in (LONGEST, PATIENCE))
    ended: set[int] = set()
    quiet = rounds = 0
    while quiet < search.quiet_searches(rounds) and time.monotonic() < deadline:
        found = dict[int, ProcessHandle]()
        while time.monotonic() < deadline and search.stop_more(found):
            pass
        for handle in found.values():
            handle.send(signal.SIGKILL)
        for handle in found.values():
            handle.wait(deadline - time.monotonic())
            handle.close()
        if found.keys() - ended:
            deadline = min(limit, time.monotonic() + PATIENCE)
            ended |= found.keys()
            rounds += 1
        if root is not None and root is within and root.pid in found:
            break  # its tree was complete
        quiet = 0 if found or search.is_unsure else quiet + 1
        if quiet < search.quiet_searches(rounds) and not found:
            time.sleep(QUIET_SECONDS)
    return len(ended)


class _Search:
    """Searches for what belongs to a mark, as `end` describes. `is_unsure` after a search that must be repeated."""

    def __init__(
        self,
        mark: bytes,
        root: ProcessHandle | None,
        within: ProcessHandle | None,
        started: Mapping[int, int],
        spare: Collection[int],
    ) -> None:
        self._mark, self._root, self._within, self._started, self._spare = mark, root, within, started, spare
        self._is_attempt = mark.startswith(EXECUTION.encode())
        self.is_unsure = False

    def quiet_searches(self, rounds: int) -> int:
        """Return how many searches must find nothing after that many rounds in which something was found."""
        if rounds > 1:
            return FORK_BOMB_SEARCHES
        return QUIET_SEARCHES if self._is_tree or rounds else 1

    def stop_more(self, found: dict[int, ProcessHandle]) -> bool:
        """Stop and hold what belongs to the mark; return whether something was found that could have started another."""
        processes: list[Process] = []
        marks: dict[int, frozenset[bytes]] = {}
        self.is_unsure = is_growing = False
        for process in self._processes():
            environment = environment_of(process.pid)
            self.is_unsure = self.is_unsure or (not environment and _is_newborn(process))
            processes.append(process)
            marks[process.pid] = marks_in(environment)
            if self._mark in marks[process.pid]:  # at once: a moment later it may have started another, and ended
                is_growing = self._stop(process, found) or is_growing
        for process in self._belonging(processes, marks):
            is_growing = self._stop(process, found) or is_growing
        return is_growing

    def _stop(self, process: Process, found: dict[int, ProcessHandle]) -> bool:
        """Stop and hold a process, unless it is to live on; return whether it was there to be stopped."""
        if process.pid in found or process.pid in self._spare:
            return False
        handle = ProcessHandle(process.pid)
        # Held first, then checked: if the number was reused in between, no signal reaches the new process.
        is_same = start_ticks(process.pid) == process.ticks
        if is_same and handle.send(signal.SIGSTOP):
            found[process.pid] = handle
        else:
            handle.close()
        self.is_unsure = self.is_unsure or not is_same  # it may have started another before it ended
        return is_same

    @property
    def _is_tree(self) -> bool:
        return self._within is not None and self._within.send(0) and start_ticks(self._within.pid) > 0

    def _processes(self) -> Iterable[Process]:
        if not self._is_tree or self._within is None:
            return process_table()
        top = process_of(self._within.pid)
        return [*([top] if top else ()), *descendants(self._within.pid, with_shells=True)]

    def _belonging(self, processes: list[Process], marks: Mapping[int, frozenset[bytes]]) -> Iterator[Process]:
        parents = {self._root.pid} if self._root is not None and self._root.send(0) else set()
        # Even of one that has ended, children and group may live on; other ticks mean that its number was reused.
        seeds = {pid for pid, ticks in self._started.items() if start_ticks(pid) in (0, ticks)}
        groups, closed = set(seeds), {process.group for process in processes if process.pid in self._spare}
        seeds |= parents
        others = self._others(processes, marks) - parents
        rest = [process for process in processes if process.pid not in others]
        while found := [
            process
            for process in rest
            if self._mark in marks[process.pid]
            or process.pid in seeds
            or process.parent in parents
            or process.group in groups
        ]:
            yield from found
            rest = [process for process in rest if process not in found]
            parents.update(process.pid for process in found)
            if self._is_attempt:
                groups.update({process.group for process in found} - closed)

    def _others(self, processes: list[Process], marks: Mapping[int, frozenset[bytes]]) -> set[int]:
        """Return the processes of other attempts and keepers of shells, with all their descendants that lack our mark."""
        others = {pid for pid, its in marks.items() if is_keeper(its)}
        while below := {process.pid for process in processes if process.parent in others} - others:
            others |= below
        if self._is_attempt:
            others.update(pid for pid, its in marks.items() if any(mark.startswith(_ATTEMPT) for mark in its))
        return {pid for pid in others if self._mark not in marks[pid]}


def marked_instances() -> set[str]:
    """Return the worker instances whose marks processes of this machine carry; none without /proc."""
    if sys.platform != "linux":
        return set()
    prefix = f"{INSTANCE}=".encode()
    marks = {mark for process in process_table() for mark in marks_of(process.pid)}
    return {mark.removeprefix(prefix).decode(errors="replace") for mark in marks if mark.startswith(prefix)}


def has_unmarked_descendants(pid: int) -> bool:
    """Whether a descendant of that process cleared its environment, so that only the tree shows where it belongs."""
    return any(not any(mark.startswith(OWNERS) for mark in marks_of(process.pid)) for process in descendants(pid))


def reap_adopted(spare: Collection[int] = ()) -> None:
    """Reap adopted processes that have ended.

    The kernel gives orphans to the main thread; processes started by a tool belong to the thread that started them, and
    their status is for the tool to collect. So this is for processes whose main thread starts none but those in
    `spare`.
    """
    for pid in set(child_pids(os.getpid(), thread=os.getpid())).difference(spare):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _is_newborn(process: Process) -> bool:
    """Whether it has just been forked: one that shows no environment is executing a program, and then shows its marks."""
    born_at = process.ticks / os.sysconf("SC_CLK_TCK")
    now = time.clock_gettime(time.CLOCK_BOOTTIME)  # which also counts from the start of the machine
    return process.parent != _KERNEL and now - born_at < _NEWBORN_SECONDS
