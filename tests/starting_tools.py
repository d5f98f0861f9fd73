"""A tool of the async lane that starts a process in each way there is; each process notes its pid in a file."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from tests.rogue_tools import LONG, NOTE_AND_SLEEP, SHAPES, noted, start, swallow

SHARED = ThreadPoolExecutor(1)
"""Outlives calls, as pools of libraries do."""

ORPHAN = f"env -i /bin/sh -c '{NOTE_AND_SLEEP}' \"$0\" &"
"""Has no mark, and no parent once its shell has ended: only its group says whose it is."""


def sleep_noted(notes: str) -> None:
    with Path(notes).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(LONG)


def by_multiprocessing(method: str) -> Callable[[str], object]:
    return lambda notes: multiprocessing.get_context(method).Process(target=sleep_noted, args=(notes,)).start()


def by_posix_spawn(notes: str) -> None:
    os.posix_spawn("/bin/sh", ["sh", "-c", NOTE_AND_SLEEP, notes], {})


def by_terminal(notes: str) -> None:
    if os.forkpty()[0] == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        sleep_noted(notes)
        os._exit(0)


async def by_asyncio(notes: str) -> None:
    await asyncio.create_subprocess_exec("/bin/sh", "-c", NOTE_AND_SLEEP, notes)


def in_thread(notes: str) -> None:
    outer = threading.Thread(target=lambda: threading.Thread(target=start, args=("session", notes)).start())
    outer.start()


def one_after_the_other(notes: str) -> None:
    """What a thread goes on to do when the first was ended; it notes what keeps it from starting the second."""
    subprocess.run(["/bin/sh", "-c", NOTE_AND_SLEEP, notes])
    try:
        subprocess.run(["/bin/sh", "-c", NOTE_AND_SLEEP, notes])
    except OSError as error:
        Path(f"{notes}.refused").write_text(str(error))


class SlowFork:
    """Forks on a thread and takes its time to; it notes when it begins to, and when it is about to have done so."""

    seconds = 0.5

    def __init__(self) -> None:
        self._notes: dict[int, str] = {}
        os.register_at_fork(before=self._hold)

    def __call__(self, notes: str) -> None:
        SHARED.submit(self._fork, notes)

    def _fork(self, notes: str) -> None:
        self._notes[threading.get_ident()] = notes
        if os.fork() == 0:
            sleep_noted(notes)
            os._exit(0)

    def _hold(self) -> None:
        if notes := self._notes.pop(threading.get_ident(), None):
            Path(f"{notes}.forking").touch()
            time.sleep(self.seconds)
            Path(f"{notes}.forked").touch()


ESCAPE = f"env -i setsid /bin/sh -c '{NOTE_AND_SLEEP}' \"$0\" &"
"""Has neither mark nor parent nor group of its body."""

WAYS: dict[str, Callable[[str], object]] = {
    **{shape: partial(start, shape) for shape in SHAPES},
    "asyncio": by_asyncio,
    "posix_spawn": by_posix_spawn,
    "terminal": by_terminal,
    "thread of a thread": in_thread,
    "to_thread": lambda notes: asyncio.to_thread(start, "session", notes),
    "shared pool": lambda notes: SHARED.submit(start, "session", notes),
    "pool of processes": lambda notes: ProcessPoolExecutor(1).submit(sleep_noted, notes),
    "orphan of a group": lambda notes: subprocess.run(["/bin/sh", "-c", ORPHAN, notes], start_new_session=True),
    "slow fork": SlowFork(),
    "one after the other": lambda notes: SHARED.submit(one_after_the_other, notes) and None,
    **{f"multiprocessing, {method}": by_multiprocessing(method) for method in ("fork", "spawn", "forkserver")},
}


class Starts(BaseTool):
    """Start a process in some ways, and then wait, or return."""

    name = "Starts"
    category = ToolCategory.EXECUTION
    lane = "async"
    parameters = (
        ToolParameter(name="ways", type="array", description="How to start one."),
        ToolParameter(name="notes", type="string", description="Where pids are noted."),
        ToolParameter(name="how", type="string", description="How to go on.", required=False, default="await"),
    )

    async def _execute(self, context: ExecutionContext, ways: list[str], notes: str, how: str) -> ToolResult:
        for way in ways:
            answer = WAYS[way](notes) if way in WAYS else subprocess.run(["/bin/sh", "-c", ESCAPE, notes])
            if asyncio.iscoroutine(answer):
                await answer
        while len(noted(Path(notes))) < len(ways) + ways.count("grandchild"):  # no deadline: its call has a timeout
            await asyncio.sleep(0.01)
        Path(f"{notes}.started").touch()
        if how == "block":
            time.sleep(LONG)
        elif how == "swallow":
            await swallow()
        elif how == "await":
            await asyncio.sleep(LONG)
        return ToolResult.ok(how)


TOOLS = (Starts,)
