"""The effects log: what bodies really did, kept outside SQL in one file that every tool process appends to."""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

VARIABLE = "CHAOS_EFFECTS"
"""Names the file in the environment of workers, which their children inherit."""

What = Literal["start", "short", "enough", "got", "end"]
"""A body starts and ends; its process has run short of descriptors, still is, and has enough again; it got what is another's."""

SHORT_FOR = 0.1
"""Seconds that a process has run, at least, between two notes that it is short of descriptors."""

_kept: list[int] = []


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing a body did. `at` is the machine's monotonic clock, which all processes share."""

    mark: str
    what: What
    pid: int
    parent: int
    at: float
    found: str = ""


def note(mark: str, what: What, found: str = "") -> None:
    """Append one line in one write, so that nothing can tear it and no kill can take it back."""
    line = json.dumps([mark, what, os.getpid(), os.getppid(), time.monotonic(), found]) + "\n"
    os.write(_log(), line.encode())


def read(log: Path) -> list[Effect]:
    """Everything that was noted, in the order of the writes."""
    if not log.exists():
        return []
    return [Effect(*json.loads(line)) for line in log.read_text().splitlines()]


def _log() -> int:
    """The file, which stays open, so that a body notes also where no descriptor is left; anew where somebody closed it."""
    with suppress(OSError):
        if _kept and os.path.samestat(os.fstat(_kept[0]), Path(os.environ[VARIABLE]).stat()):
            return _kept[0]
    _kept[:] = [os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)]
    return _kept[0]
