"""Tools that leave processes behind, will not stop, or eat memory; each process notes its pid in a file."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from tests.waiting import is_alive, within

LONG = 300
NOTE_AND_SLEEP = f'echo $$ >> "$0"; exec sleep {LONG}'

HOARD: list[bytes] = []

SHAPES = ("child", "grandchild", "session", "daemon", "fork", "forked daemon", "clean session")
"""Ways in which a process can outlive the body that started it."""


def start(shape: str, notes: str) -> None:
    """Start a process of that shape; it appends its pid to the file `notes`."""
    argv = ["/bin/sh", "-c", NOTE_AND_SLEEP, notes]
    if shape == "child":
        subprocess.Popen(argv)
    elif shape == "grandchild":
        subprocess.Popen(["/bin/sh", "-c", f'/bin/sh -c \'{NOTE_AND_SLEEP}\' "$0" & echo $$ >> "$0"; wait', notes])
    elif shape == "session":
        subprocess.Popen(argv, start_new_session=True)
    elif shape == "clean session":
        subprocess.Popen(argv, start_new_session=True, env={})
    elif shape in ("daemon", "clean daemon"):
        environment = {} if shape == "clean daemon" else None
        outer = ["/bin/sh", "-c", f"setsid /bin/sh -c '{NOTE_AND_SLEEP}' \"$0\" &", notes]
        subprocess.run(outer, env=environment, check=True)
    else:
        _fork(notes, times=2 if shape == "forked daemon" else 1)


def _fork(notes: str, times: int) -> None:
    """Fork without executing anything; twice and with a session of its own, as daemons do."""
    child = os.fork()
    if child:
        if times == 2:
            os.waitpid(child, 0)
        return
    if times == 2:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.closerange(0, 1000)
    with Path(notes).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(LONG)
    os._exit(0)


def noted(notes: Path) -> list[int]:
    """The pids in the file, once they are complete."""
    return [int(line) for line in notes.read_text().splitlines()] if notes.exists() else []


class Rogue(BaseTool):
    """Leave processes of some shapes behind, and then end, or rather not."""

    name = "Rogue"
    category = ToolCategory.EXECUTION
    parameters = (
        ToolParameter(name="how", type="string", description="How to go on."),
        ToolParameter(name="notes", type="string", description="Where pids are noted, this process's first."),
        ToolParameter(name="shapes", type="array", description="What to leave behind.", required=False, default=[]),
    )

    async def _execute(self, context: ExecutionContext, how: str, notes: str, shapes: list[str]) -> ToolResult:
        before = noted(Path(notes))
        if before and how == "block at first":
            return ToolResult.ok([pid for pid in before if is_alive(pid)])
        with Path(notes).open("a") as file:
            file.write(f"{os.getpid()}\n")
        for shape in shapes:
            start(shape, notes)
        time_left = within(60, "what was started did not note itself")
        while len(noted(Path(notes))) < 1 + len(shapes) + shapes.count("grandchild") and next(time_left):
            await asyncio.sleep(0.01)
        await self._go_on(how)
        return ToolResult.ok(os.getpid())

    async def _go_on(self, how: str) -> None:
        ends = {
            "block": lambda: time.sleep(LONG),
            "block at first": lambda: time.sleep(LONG),
            "hold the interpreter": lambda: ctypes.PyDLL(None).sleep(LONG),
            "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "exit": lambda: os._exit(3),
            "eat": lambda: bytearray(2**40),
            "hoard": lambda: HOARD.append(b"x" * 200_000_000),
            "eat in children": eat_in_children,
            "let go of everything": lambda: os.closerange(3, 1000),
        }
        if how == "await":
            await asyncio.sleep(LONG)
        elif how == "await a thread":
            await asyncio.to_thread(time.sleep, LONG)
        elif how == "swallow":
            await swallow()
        elif how in ends:
            ends[how]()
        if how == "let go of everything":
            time.sleep(LONG)


class RogueIdempotent(Rogue):
    """The same, said to be harmless."""

    name = "RogueIdempotent"
    capabilities = Capabilities(idempotent=True)


async def swallow() -> None:
    """Refuse to be cancelled."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            continue


def eat_in_children() -> None:
    """Let children take 100 MB each, which no limit of a single process sees."""
    code = f"import time; held = b'x' * 100_000_000; time.sleep({LONG})"
    for _ in range(8):
        subprocess.Popen([sys.executable, "-c", code])
    time.sleep(LONG)


ROGUES = (Rogue, RogueIdempotent)
