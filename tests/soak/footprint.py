"""What this process holds after the first calls and after the last: it must be the same."""

import gc
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.descriptors import descriptors

GROWTH_LIMIT = 20 << 20
HANDLES_MORE = 5
SETTLING_SECONDS = 30.0
LITTER = (".forge-tmp", ".lock", ".tmp", ".new")
SLOWER = 3


@dataclass(slots=True)
class Footprint:
    """Each list has what was weighed first and last; `p99` of the seconds of both halves of the calls."""

    calls: int = 0
    memory: list[int] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)

    @property
    def growth(self) -> int:
        return self.memory[-1] - self.memory[0]

    def weigh(self, folder: Path) -> None:
        """Look, while no call is under way; what is ending may do so first."""
        deadline = time.monotonic() + SETTLING_SECONDS
        while (children := processes()) > (self.processes or [children])[0] and time.monotonic() < deadline:
            time.sleep(0.01)
        gc.collect()
        self.memory.append(psutil.Process().memory_info().rss)
        self.handles.append(len(descriptors()))
        self.processes.append(children)
        self.files.append(litter(folder))

    def broken(self) -> list[str]:
        found = []
        if self.growth > GROWTH_LIMIT:
            found.append(f"memory grew by {self.growth >> 20} MiB in {self.calls:,} calls")
        if self.handles[-1] > self.handles[0] + HANDLES_MORE:
            found.append(f"open handles grew from {self.handles[0]} to {self.handles[-1]}")
        if self.processes[-1] > self.processes[0]:
            found.append(f"processes grew from {self.processes[0]} to {self.processes[-1]}")
        if self.files[-1]:
            found.append(f"{self.files[-1]} temporary files are left")
        if self.p99 and self.p99[-1] > self.p99[0] * SLOWER:
            found.append(f"the 99th percentile rose from {self.p99[0] * 1000:.0f} to {self.p99[-1] * 1000:.0f} ms")
        return found

    def told(self) -> dict[str, object]:
        """For people."""
        return {
            "calls": self.calls,
            "grown by MiB": round(self.growth / (1 << 20), 1),
            "handles": self.handles,
            "processes": self.processes,
            "temporary files": self.files,
            "p99 of the halves, ms": [round(seconds * 1000, 1) for seconds in self.p99],
        }


def processes() -> int:
    """Count everything below this process that is not a zombie of somebody else's to reap."""
    return len(psutil.Process().children(recursive=True))


def litter(folder: Path) -> int:
    """Count temporary and lock files below a folder, and what is in this process's folder for temporary files."""
    below = (name for _, _, names in os.walk(folder) for name in names)
    return sum(name.endswith(LITTER) for name in below) + len(os.listdir(tempfile.gettempdir()))


def percentile(times: Sequence[float], share: float = 0.99) -> float:
    return sorted(times)[int(len(times) * share)] if times else 0.0
