"""Very many calls of all kinds in one process: memory, handles and times stay what they were."""

import gc
import os
import random
import shutil
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from forge_tools.executor import ToolExecutor
from forge_tools.records import ExecutionContext
from tests.unit.tools.every_tool import FINE, WRONG, fill

GROWTH_LIMIT = 20 << 20
WARM_UP = 0.1
REFILLED_EVERY = 20
SHELL = [("Bash", {"command": "true"}), ("Bash", {"command": "seq 2000; exit 3"})]


@dataclass(slots=True)
class Footprint:
    """What the process had after the first calls and at the end; times are 99th percentiles of both halves, in seconds."""

    calls: int = 0
    memory: list[int] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)

    @property
    def growth(self) -> int:
        return self.memory[-1] - self.memory[0]

    def broken(self) -> list[str]:
        found = []
        if self.growth > GROWTH_LIMIT:
            found.append(f"memory grew by {self.growth >> 20} MiB in {self.calls:,} calls")
        if self.handles[-1] > self.handles[0] + 5:
            found.append(f"open handles grew from {self.handles[0]} to {self.handles[-1]}")
        return found


async def mix(executor: ToolExecutor, root: Path, *, calls: int, seconds: float, seed: int) -> Footprint:
    """Make so many calls, or as many as there is time for, in an order that the seed decides."""
    chooser, seen, times = random.Random(seed), Footprint(), []
    everything, deadline, started = [*FINE, *WRONG, *SHELL], time.monotonic() + seconds, time.monotonic()
    for number in range(calls):
        if number % REFILLED_EVERY == 0:
            shutil.rmtree(root, ignore_errors=True)
            fill(root)
            executor.clear_executions()  # the history of a session is kept on purpose
        context = ExecutionContext(working_dir=".", max_output_size=chooser.choice((500, 20_000)))
        tool, arguments = chooser.choice(everything)
        began = time.monotonic()
        await executor.execute(tool, context, **arguments)
        times.append(time.monotonic() - began)
        is_warm = number >= calls * WARM_UP or time.monotonic() > started + seconds * WARM_UP
        if is_warm and not seen.memory:
            _weigh(seen)
        if time.monotonic() > deadline:
            break
    _weigh(seen)
    half = len(times) // 2
    seen.calls, seen.p99 = len(times), [_p99(times[:half]), _p99(times[half:])]
    return seen


def _weigh(seen: Footprint) -> None:
    gc.collect()
    seen.memory.append(psutil.Process().memory_info().rss)
    seen.handles.append(len(os.listdir("/proc/self/fd")))


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[-1] if len(times) > 1 else 0.0
