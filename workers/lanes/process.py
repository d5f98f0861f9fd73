"""The pool's processes as their engine sees them: the line to each, how it ended, its memory, its messages."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_tools.model import Wakeup
from forge_tools.sandbox.processes.endings import ProcessHandle
from forge_tools.sandbox.processes.trees import descendants
from forge_tools.sandbox.walls.profile import Profile
from forge_tools.time_limits import CeleryLimits
from workers.capture import ChildOutput
from workers.lanes.base import Body, TimeLimit
from workers.lanes.frames import EngineEnd

LOOK_SECONDS = 0.01
PAGE = os.sysconf("SC_PAGE_SIZE")
PATIENCE = 0.5
"""Seconds until a process whose handles are closed has ended, unless it lives on without them."""

START_SECONDS = 60.0
ANSWER_SECONDS = 10.0
"""How long a process may take to start, and an idle one to answer."""

Limit = Callable[[CeleryLimits], TimeLimit]
"""Sets Celery's time limits on the body that is about to start."""

MOST_WAITING = 1000
"""The most wakeups kept; others are pulled from SQL later."""


@dataclass(slots=True)
class PoolProcess:
    """It runs one body at a time. Once it `is_doomed`, it gets none: it is being killed with all it started.

    One that `is_fresh` has run nothing yet and has no walls; later it has those of `profile`, if any, which it applies
    before its first call: then it `is_walled`. `process` is the pool's own object for it, and `limit` sets its time limits. `awaited` counts the seconds since it was asked for an
    answer, until it answers.
    """

    line: EngineEnd
    handle: ProcessHandle
    process: Any
    limit: Limit
    output: ChildOutput | None = None
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
        await asyncio.sleep(LOOK_SECONDS)
    return code


def said(code: int | None) -> str:
    """Return the end of a process in words that follow its name."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with status {code}"
    hint = "; the kernel's out-of-memory killer is one sender" if code == -signal.SIGKILL else ""
    return f"was ended by signal {-code} ({_signal_name(-code)}{hint})"


def heavy(pids: Sequence[int], limit: int) -> list[int]:
    """Return those processes that with their descendants hold more than `limit` bytes of real memory."""
    return [pid for pid in pids if _resident([pid, *(process.pid for process in descendants(pid))], limit) > limit]


class Messages:
    """Wakeups are served in the order of arrival, whichever child received them.

    Celery sends no message to a child whose task waits here, and what a full worker does not take, another one gets. So
    a task also waits, with all its ids taken, until a child is idle.
    """

    def __init__(self) -> None:
        self._wakeups: deque[tuple[Wakeup, _Message | None]] = deque()
        self._held: dict[int, _Message] = {}

    @property
    def waiting(self) -> int:
        """How many ids nobody has taken yet."""
        return len(self._wakeups)

    def add(self, holder: int, wakeups: Sequence[Wakeup], rest: Callable[[], None]) -> None:
        """Keep what arrived at the process `holder`, whose task waits until `rest` is called."""
        kept = wakeups[: MOST_WAITING - len(self._wakeups)]
        message = self._held[holder] = _Message(len(kept), rest)
        self._wakeups.extend((wakeup, message) for wakeup in kept)

    def take(self, count: int) -> list[Wakeup]:
        """Take the next ids, at most `count`."""
        taken = [self._wakeups.popleft() for _ in range(min(count, len(self._wakeups)))]
        for _, message in taken:
            if message is not None:
                message.waiting -= 1
        return [wakeup for wakeup, _ in taken]

    def put_back(self, wakeups: Sequence[Wakeup]) -> None:
        """Have these taken next; the message that brought them waits for them no more."""
        self._wakeups.extendleft((wakeup, None) for wakeup in reversed(wakeups))

    def holds(self, process: int) -> bool:
        """Return whether the task of that process waits here."""
        return process in self._held

    def let_rest(self, count: int) -> None:
        """Let up to `count` tasks return whose ids have all been taken."""
        done = [holder for holder, message in self._held.items() if message.waiting == 0]
        for holder in done[: max(0, count)]:
            self._held.pop(holder).rest()

    def forget(self, process: int) -> None:
        """Forget a task that is gone with its process; its ids stay."""
        self._held.pop(process, None)


def exit_code(pid: int, process: Any) -> int | None:
    """Return its exit status, None while it lives, without reaping it: the pool does that, and remembers the status."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return None if process is None else process.exitcode
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None if process is None else process.exitcode
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else "unknown"


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


@dataclass(slots=True)
class _Message:
    """`waiting` counts its ids that nobody has taken yet."""

    waiting: int
    rest: Callable[[], None]
