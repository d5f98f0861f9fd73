"""The race fuzzer: every file tool on paths that another process swaps at full speed. Nothing outside is told or touched."""

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

from forge_tools.executor import ToolExecutor
from forge_tools.records import ExecutionContext, ToolResult
from tests.soak import flipper

CANARY = "canary-e83b"
CALL_SECONDS = 20.0
LOOKED_EVERY = 200

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
    """Make so many calls of each tool, or as many as there is time for."""
    chooser, found, outside = random.Random(seed), Findings(), root.parent / "outside"
    with flipping(root, outside):
        before, deadline = fingerprint(outside), time.monotonic() + seconds
        for number in range(calls):
            for tool, choices in CALLS.items():
                await _try(executor, tool, chooser.choice(choices), found)
            if number % LOOKED_EVERY == 0 and fingerprint(outside) != before:
                found.broken.append(f"after {number} calls of each tool the outside is not what it was")
                break
            if time.monotonic() > deadline:
                break
    if fingerprint(outside) != before:
        found.broken.append("the outside is not what it was")
    return found


async def _try(executor: ToolExecutor, tool: str, arguments: dict[str, Any], found: Findings) -> None:
    context = ExecutionContext(working_dir=".", timeout=CALL_SECONDS)
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
