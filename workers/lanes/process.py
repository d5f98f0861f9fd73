"""The pool's processes as their engine sees them: the line to each, how it ended, its memory, and which of them runs a call."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_tools.model.execution import Claim
from forge_tools.sandbox.processes.endings import ProcessHandle
from forge_tools.sandbox.processes.trees import descendants
from forge_tools.sandbox.walls.cgroups import Cgroup
from forge_tools.sandbox.walls.profile import Profile
from forge_tools.time_limits import CeleryLimits
from workers.capture import ChildOutput
from workers.lanes.base import Body, TimeLimit
from workers.lanes.frames import EngineEnd

POLL_SECONDS = 0.01
PAGE = os.sysconf("SC_PAGE_SIZE")
PATIENCE = 0.5
"""Seconds until a process whose handles are closed has ended, unless it lives on without them."""

START_SECONDS = 60.0
ANSWER_SECONDS = 10.0
"""How long a process may take to start, and an idle one to answer."""

FORK_SECONDS = 60.0
"""How long a call waits for a child to be forked."""

SPARED_SECONDS = 1.0
"""How long a call waits for a running child with its walls before an idle one makes room. One that was idle for as
long makes room at once.
"""

Limit = Callable[[CeleryLimits], TimeLimit]
"""Sets Celery's time limits on the body that is about to start."""


@dataclass(slots=True)
class PoolProcess:
    """It runs one body at a time. Once it `is_doomed`, it gets none: it and all that it started are being killed.

    One that `is_fresh` has run nothing yet and has no walls. Later it has those of `profile`, if any, which it applies
    before its first call: then it `is_walled`. `process` is the pool's own object for it; `limit` sets its time limits;
    `awaited` counts the seconds since it was asked for an answer, until it answers.
    """

    line: EngineEnd
    handle: ProcessHandle
    process: Any
    limit: Limit
    output: ChildOutput
    group: Cgroup
    body: Body | None = None
    has_started: bool = False
    is_ready: bool = False
    is_doomed: bool = False
    is_fresh: bool = True
    is_walled: bool = False
    profile: Profile | None = None
    asked: int = 0
    awaited: float | None = 0.0
    idle_since: float = 0.0
    is_silent: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int:
        return self.handle.pid

    @property
    def is_answering(self) -> bool:
        return self.is_ready and not self.is_doomed

    @property
    def is_idle(self) -> bool:
        return self.body is None and self.is_answering

    def is_mute(self, elapsed: float) -> bool:
        """Ask for an answer, unless one is due; return whether it is late, now that `elapsed` more seconds are over.

        A body may delay the answer as long as its timeout allows.
        """
        if self.body is not None or self.is_doomed:
            return False
        if self.awaited is None:
            self.awaited = 0.0
            self.line.send({"answer?": True})
        else:
            self.awaited += elapsed
        return self.awaited > (ANSWER_SECONDS if self.is_ready else START_SECONDS)

    async def end_in_words(self) -> str:
        """Say how it ended, in words that follow its name."""
        if self.line.fault is not None:
            return f"was ended because of what it sent, {self.line.fault},"
        return said(await exit_of(self.pid, self.process))


@dataclass(slots=True)
class _Waiting:
    """A call without a child yet. `is_on_its_way`: an idle child has made room, and its successor is for this call."""

    claim: Claim
    profile: Profile | None
    since: float = field(default_factory=time.monotonic)
    is_on_its_way: bool = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    @property
    def is_late(self) -> bool:
        return self.seconds >= SPARED_SECONDS


class Assignment:
    """Calls that fit no idle child wait for one that runs; where none fits, an idle one makes room for a new one."""

    def __init__(self, profile_of: Callable[[Claim], Profile | None]) -> None:
        self._profile_of = profile_of
        self._uses: Counter[Profile | None] = Counter()
        self._waiting: list[_Waiting] = []

    @property
    def waiting(self) -> list[Claim]:
        return [one.claim for one in self._waiting]

    def unserved(self, running: Sequence[PoolProcess]) -> int:
        """How many idle children these calls still need.

        None for those whose child is on its way, nor for as many as there are running children that may run them soon.
        """
        asking = [one for one in self._waiting if not one.is_on_its_way]
        patient = sum(self._is_patient(one, running) for one in asking)
        return len(asking) - patient + max(0, patient - len(running))

    def child_for(self, claim: Claim, idle: Sequence[PoolProcess]) -> PoolProcess | None:
        """Return an idle child that fits; None: the call waits for one."""
        asked = _Waiting(claim, self._profile_of(claim))
        self._uses[asked.profile] += 1
        if (child := _walled(asked, idle) or _fresh(asked, idle)) is None:
            self._waiting.append(asked)
        return child

    def next(self, idle: Sequence[PoolProcess]) -> tuple[PoolProcess, Claim] | None:
        """Take the first waiting call that fits one of these children; fresh ones go first to calls that made room."""
        by_promise = sorted(self._waiting, key=lambda one: not one.is_on_its_way)
        for fitting, order in ((_walled, self._waiting), (_fresh, by_promise)):
            for one in order:
                if (child := fitting(one, idle)) is not None:
                    self._waiting.remove(one)
                    return child, one.claim
        return None

    def to_replace(
        self, idle: Sequence[PoolProcess], running: Sequence[PoolProcess], *, coming: int
    ) -> list[PoolProcess]:
        """Choose idle children that make room for calls that wait: those whose walls were used least.

        A call waits for a running child of its walls, and until it is late only a child that nobody used for as long
        makes room: two workspaces by turns would replace children all the time. Nor does one make room for a call that
        one of the `coming` children is free for.
        """
        now = time.monotonic()
        chosen: list[PoolProcess] = []
        free = coming - sum(one.is_on_its_way for one in self._waiting)
        for one in [one for one in self._waiting if not one.is_on_its_way]:
            is_patient = self._is_patient(one, running)
            left = [
                child
                for child in idle
                if child not in chosen and not (is_patient and now - child.idle_since < SPARED_SECONDS)
            ]
            if free > 0 and not is_patient:
                free -= 1
                one.is_on_its_way = True
            elif left:
                one.is_on_its_way = True
                chosen.append(min(left, key=lambda child: self._uses[child.profile]))
        return chosen

    def given_up(self, *, is_full: bool) -> list[Claim]:
        """Take back calls for which the pool forks nothing, and late ones where `is_full`: no child is idle."""
        return self.withdraw(
            lambda one: one.seconds >= FORK_SECONDS or (is_full and one.is_late and not one.is_on_its_way)
        )

    def withdraw(self, is_meant: Callable[[_Waiting], bool]) -> list[Claim]:
        """Take back those waiting calls."""
        meant = [one for one in self._waiting if is_meant(one)]
        self._waiting = [one for one in self._waiting if one not in meant]
        return [one.claim for one in meant]

    def _is_patient(self, one: _Waiting, running: Iterable[PoolProcess]) -> bool:
        """Return whether it may wait for a child with its walls: one of these, or one that is on its way."""
        soon = {child.profile for child in running}
        soon.update(other.profile for other in self._waiting if other.is_on_its_way)
        return not one.is_late and one.profile in soon


async def until_silent(processes: Iterable[PoolProcess], patience: float) -> None:
    """Wait until nothing more can come from them, for at most so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await asyncio.gather(*(process.is_silent.wait() for process in processes))


async def exit_of(pid: int, process: Any) -> int | None:
    """Return its exit status, negative for a signal, once it has ended; None if nobody knows, or it lives on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while (code := exit_code(pid, process)) is None and loop.time() < deadline:  # noqa: ASYNC110  no event exists
        await asyncio.sleep(POLL_SECONDS)
    return code


def said(code: int | None) -> str:
    """Return the end of a process in words that follow its name."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with status {code}"
    hint = "; the kernel's out-of-memory killer is one sender" if code == -signal.SIGKILL else ""
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
    return f"was ended by signal {-code} ({name}{hint})"


def heavy(limits: Mapping[int, int]) -> list[int]:
    """Return those processes that with their descendants hold more bytes of real memory than their limit."""
    return [
        pid
        for pid, limit in limits.items()
        if _resident([pid, *(process.pid for process in descendants(pid))], limit) > limit
    ]


def exit_code(pid: int, process: Any) -> int | None:
    """Return its exit status, None while it lives, without reaping it: the pool does that, and remembers the status."""
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None if process is None else process.exitcode
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _resident(tree: Sequence[int], limit: int) -> int:
    """Count shared memory of forked processes once: that takes milliseconds, so only if the quick sum is too much."""
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


def _walled(one: _Waiting, idle: Sequence[PoolProcess]) -> PoolProcess | None:
    return next((child for child in idle if not child.is_fresh and child.profile == one.profile), None)


def _fresh(one: _Waiting, idle: Sequence[PoolProcess]) -> PoolProcess | None:
    """Return a fresh one, which fits any call and keeps its walls from then on."""
    if (child := next((child for child in idle if child.is_fresh), None)) is not None:
        child.profile, child.is_fresh = one.profile, False
    return child
