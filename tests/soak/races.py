"""The race fuzzer: every file tool on paths that another process swaps at full speed. Nothing outside is read or changed."""

import asyncio
import hashlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.tool.executor import ToolExecutor
from tests.soak import flipper
from tests.soak.footprint import Footprint

CANARY = "canary-e83b"
STREAMS = 4
CALL_SECONDS = 20.0
SEARCH_SECONDS = 0.6  # ripgrep waits at a pipe which has just become one until the time of its call is over
LOOKED_EVERY = 50

PATHS = ("d/file", "d/new", "d/sub/new", "p/q/file", "p/q/new", "d/other", "d/../d/file")
FOLDERS = ("d", "d/sub", "p/q", ".", "p")
CALLS: dict[str, list[dict[str, Any]]] = {
    "Read": [{"file_path": path} for path in PATHS],
    "Write": [{"file_path": path, "content": "harm\n"} for path in PATHS],
    "Edit": [
        *({"file_path": path, "old_string": old, "new_string": "harm"} for path in PATHS for old in ("inside", CANARY)),
        *({"file_path": path, "old_string": "", "new_string": "harm"} for path in PATHS),
    ],
    "Delete": [{"path": path, "recursive": True} for path in (*PATHS, "d", "p/q")],
    "ListDirectory": [{"path": path, "depth": depth, "details": True} for path in FOLDERS for depth in (1, 4)],
    "Glob": [{"pattern": pattern, "path": path} for path in FOLDERS for pattern in ("**", "*/file", "f*")],
    "Grep": [
        {"pattern": ".", "path": path, "output_mode": mode, "respect_ignore": False}
        for path in (*FOLDERS, "d/file")
        for mode in ("content", "files_with_matches", "count")
    ],
}


@dataclass(slots=True)
class Findings:
    """What was done, how it ended, and each promise that was broken."""

    calls: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    footprint: Footprint = field(default_factory=Footprint)


@contextmanager
def flipping(root: Path, outside: Path) -> Iterator[None]:
    """A workspace beside a folder that is nobody's business, and a process that swaps the one for the other."""
    root.mkdir()
    outside.mkdir()
    for name in ("file", "other", "only-outside"):
        (outside / name).write_text(f"{CANARY}\n")
    (outside / "sub").mkdir()
    process = subprocess.Popen([sys.executable, str(flipper.__file__), str(root), str(outside)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def fuzz(executor: ToolExecutor, root: Path, *, calls: int, seconds: float, seed: int) -> Findings:
    """Make so many calls of each tool, or as many as there is time for: some at a time, in an order that the seed decides."""
    found, outside, deadline = Findings(), root.parent / "outside", time.monotonic() + seconds
    with flipping(root, outside):
        before = fingerprint(outside)
        for tool, choices in CALLS.items():
            await _try(executor, tool, choices[0], found)  # what is started once is so by now
        found.footprint.weigh(root.parent)

        async def stream(number: int) -> None:
            chooser = random.Random(seed + number)
            for round_number in range(max(1, calls // STREAMS)):
                for tool, choices in CALLS.items():
                    await _try(executor, tool, chooser.choice(choices), found)
                if round_number % LOOKED_EVERY == 0:
                    executor.clear_executions()  # the history of a session is kept on purpose
                    if fingerprint(outside) != before:
                        found.broken.append(f"after {round_number} rounds of {STREAMS} calls the outside has changed")
                        return
                if time.monotonic() > deadline:
                    return

        await asyncio.gather(*map(stream, range(STREAMS)))
        executor.clear_executions()
        found.footprint.calls = found.calls.total()
        found.footprint.weigh(root.parent)
    if fingerprint(outside) != before:
        found.broken.append("the outside is not what it was")
    return found


async def _try(executor: ToolExecutor, tool: str, arguments: dict[str, Any], found: Findings) -> None:
    context = ExecutionContext(working_dir=".", timeout=SEARCH_SECONDS if tool == "Grep" else CALL_SECONDS)
    started = time.monotonic()
    result = await asyncio.wait_for(executor.execute(tool, context, **arguments), CALL_SECONDS + 10)
    found.calls[tool] += 1
    found.endings[f"{tool} {'ok' if result.success else result.error_code}"] += 1
    for what in faults(result, arguments, time.monotonic() - started):
        found.broken.append(f"{tool} {arguments}: {what}")


def faults(result: ToolResult, arguments: dict[str, Any], seconds: float) -> Iterator[str]:
    """What is wrong with one result."""
    told = f"{result.output}{result.metadata}{result.error_details}"
    if (
        CANARY in told
        or "only-outside" in told
        or (result.error and CANARY in result.error.replace(str(arguments), ""))
    ):
        yield f"it tells of what is outside: {told[:300]}"
    if result.error and result.error.startswith("Unexpected"):
        yield result.error
    if seconds > CALL_SECONDS:
        yield f"it took {seconds:.0f} s"


def fingerprint(outside: Path) -> str:
    seen = []
    for path in sorted([outside, *outside.rglob("*")]):
        status = path.lstat()
        seen.append((str(path), status.st_mode, status.st_ino, path.read_bytes() if path.is_file() else b""))
    return hashlib.sha256(repr(seen).encode()).hexdigest()
