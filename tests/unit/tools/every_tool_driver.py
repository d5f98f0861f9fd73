"""A separate process that makes every call of every file tool and of Bash, and prints as JSON what it saw and left behind.

`python -m tests.unit.tools.every_tool_driver FOLDER`: the folder is empty, and so is the temporary one.
"""

import asyncio
import gc
import json
import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge_tools.model import ExecutionContext
from forge_tools.model.scope import SCOPE, CallScope
from forge_tools.sandbox import decoding
from forge_tools.sandbox.processes.spawner import SPAWNER
from forge_tools.tools import BUILTINS
from tests.descriptors import descriptors
from tests.unit.tools.every_tool import FINE, WRONG, executor, fill
from tests.waiting import within

SHELL = [
    ("Bash", {"command": "env; export -p; cat /proc/self/environ /proc/$PPID/environ"}),
    ("Bash", {"command": "echo $HOME; exit 3"}),
    ("Bash", {"command": "sleep 600 & echo left"}),
    ("Bash", {"command": "seq 100000"}),
]
NETWORK = {
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "socket.sendmsg",
    "socket.getaddrinfo",
    "socket.gethostbyname",
}
SECONDS = 5.0

attempts: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what goes, or asks, beyond this machine."""
    if event in NETWORK and getattr(arguments[0], "family", None) != socket.AF_UNIX:
        attempts.append(f"{event} {arguments[1:]!r}")


def children() -> set[str]:
    """The descendants of this process, zombies too, but for the launchers, which stay, and the supervisor that each keeps ready."""
    parents: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):
        try:
            text = Path(f"/proc/{name}/stat").read_text() if name.isdigit() else ""
        except OSError:
            continue
        if text:
            state, parent, *_ = text.rpartition(")")[2].split()
            parents[int(name)] = int(parent), state
    kept = {SPAWNER.pid, decoding.decoder("image").pid}
    for launcher in list(kept):
        below = [pid for pid, (parent, state) in parents.items() if parent == launcher and state != "Z"]
        kept |= set(below) if len(below) == 1 else set()
    found, todo = set(), {os.getpid()}
    time_left = within(60, "processes have ever more children")
    while todo and next(time_left):
        inner = {pid for pid, (parent, _) in parents.items() if parent in todo}
        found |= {f"{pid} {parents[pid][1]}" for pid in inner - kept}
        todo = inner
    return found


def settled(look: Callable[[], set[Any]], before: set[Any]) -> list[Any]:
    """What is there more than before, once that is nothing or the patience is over."""
    deadline = time.monotonic() + SECONDS
    while (more := look() - before) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return sorted(more)


def litter(folder: Path) -> list[str]:
    """Temporary and lock files, anywhere below."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return [name for name in names if name.endswith((".forge-tmp", ".lock", ".tmp", ".new"))]


async def main(folder: Path) -> None:
    told: list[Any] = []
    log = logging.FileHandler(folder / "log", "w")
    logging.getLogger().addHandler(log)
    logging.getLogger().setLevel(logging.DEBUG)
    fill(folder / "first")
    await executor(folder / "first").execute("Bash", ExecutionContext(working_dir="."), command="true")
    for name in ("half.txt", "picture.png"):
        await executor(folder / "first").execute("Read", ExecutionContext(working_dir="."), file_path=name)
    opened, born = descriptors(), children()
    for number, (tool, arguments) in enumerate([*FINE, *WRONG, *SHELL]):
        for is_dry in (True, False):
            root = folder / f"{number}{is_dry}"
            fill(root)
            context = ExecutionContext(working_dir=".", dry_run=is_dry, max_output_size=3000)
            SCOPE.set(CallScope(execution_id=f"e{number}"))
            result = await executor(root, folder / "kept").execute(tool, context, **arguments)
            told.append(result.model_dump(mode="json") | {"tool": tool})
    for tool, arguments in (*FINE, ("Bash", {"command": "sleep 600"})):
        root = folder / f"cut-{tool}-{time.monotonic_ns()}"
        fill(root)
        call = executor(root).execute(tool, ExecutionContext(working_dir="."), **arguments)
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0.002)
        task.cancel()
        await asyncio.wait([task])
        del task, call  # what was raised in it holds on to what it had open
    left = {
        "handles": settled(descriptors, opened),
        "children": settled(children, born),
        "files": [*litter(folder), *os.listdir(tempfile.gettempdir())],
    }
    claims = {tool.name: tool().spec.capabilities.accesses_network for tool in BUILTINS}
    print(json.dumps({"told": told, "left": left, "attempts": attempts, "claims": claims}))


if __name__ == "__main__":
    sys.addaudithook(watch)
    asyncio.run(main(Path(sys.argv[1])))
