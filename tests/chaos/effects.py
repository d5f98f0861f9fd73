"""The effects log: what bodies really did, kept outside SQL in one file that every tool process appends to."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

VARIABLE = "CHAOS_EFFECTS"
"""Names the file in the environment of workers, which their children inherit."""

What = Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing a body did. `at` is the machine's monotonic clock, which all processes share."""

    mark: str
    what: What
    pid: int
    parent: int
    at: float


def note(mark: str, what: What) -> None:
    """Append one line in one write, so that nothing can tear it and no kill can take it back."""
    line = json.dumps([mark, what, os.getpid(), os.getppid(), time.monotonic()]) + "\n"
    handle = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def read(log: Path) -> list[Effect]:
    """Everything that was noted, in the order of the writes."""
    if not log.exists():
        return []
    return [Effect(*json.loads(line)) for line in log.read_text().splitlines()]
