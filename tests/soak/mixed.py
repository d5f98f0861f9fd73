"""Very many calls of every tool in one process: memory, handles, processes, temporary files and times do not grow."""

import asyncio
import random
import shutil
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools import BUILTINS
from tests.soak.footprint import Footprint, percentile
from tests.unit.tools.every_tool import FINE, WRONG, fill

STREAMS = 4
WARM_UP = 0.1
REFILLED_EVERY = 5
SHELL_ENDED_EVERY = 50
COMMANDS = [("Bash", {"command": "true"}), ("Bash", {"command": "seq 2000; exit 3"}), ("Bash", {"command": "no-such"})]

Arguments = dict[str, Any]


def choices() -> dict[str, list[Arguments]]:
    """What each tool may be called with, good and bad."""
    found: dict[str, list[Arguments]] = defaultdict(list)
    for tool, arguments in (*FINE, *WRONG, *COMMANDS):
        found[tool].append(arguments)
    return found


class Stream:
    """Calls one after the other, in a workspace and a session of their own. A round is one call of each tool."""

    def __init__(self, root: Path, shells: Path, name: str, seed: int) -> None:
        self.calls: Counter[str] = Counter()
        self.times: list[float] = []
        self._root = root
        self._name = name
        self._chooser = random.Random(seed)
        self._choices = choices()
        self._shell = ""
        registry = ScopedRegistry()
        registry.register_many([tool() for tool in BUILTINS])
        self._executor = ToolExecutor(registry, reach=Reach(root=root, shells=shells, hostname="soak"))

    async def run(self, rounds: int, deadline: float) -> None:
        """Make so many rounds, or as many as there is time for; no shell is left running."""
        for number in range(rounds):
            if number % REFILLED_EVERY == 0:
                shutil.rmtree(self._root, ignore_errors=True)
                fill(self._root)
                self._executor.clear_executions()  # the history of a session is kept on purpose
            for tool in self._chooser.sample(list(self._choices), len(self._choices)):
                await self._call(tool, self._chooser.choice(self._choices[tool]))
            is_over = number == rounds - 1 or time.monotonic() > deadline
            await self._use_shell(is_last=is_over or number % SHELL_ENDED_EVERY == SHELL_ENDED_EVERY - 1)
            if is_over:
                break

    async def _use_shell(self, *, is_last: bool) -> None:
        if not self._shell:
            started = await self._call("Bash", {"command": "echo ready; exec sleep 600", "run_in_background": True})
            self._shell = started.metadata["bash_id"]
        seen = await self._call(
            "BashOutput", {"bash_id": self._shell, "wait_for": "ready", "wait_ms": 5000, "since": 0}
        )
        assert "ready" in seen.output, seen
        assert (await self._call("ListShells", {})).metadata["running"] == 1
        ended = await self._call("KillShell", {"shell_id": self._shell if is_last else "no-such"})
        assert ended.success is is_last, ended
        self._shell = "" if is_last else self._shell

    async def _call(self, tool: str, arguments: Arguments) -> ToolResult:
        size = self._chooser.choice((500, 20_000))
        context = ExecutionContext(working_dir=".", max_output_size=size, session_id=self._name)
        began = time.monotonic()
        result = await self._executor.execute(tool, context, **arguments)
        self.times.append(time.monotonic() - began)
        self.calls[tool] += 1
        return result


async def mix(folder: Path, shells: Path, *, calls: int, seconds: float, seed: int) -> Footprint:
    """Make so many calls of each tool, or as many as there is time for, in an order that the seed decides."""
    seen, deadline = Footprint(), time.monotonic() + seconds
    streams = [Stream(folder / str(number), shells, f"s{number}", seed + number) for number in range(STREAMS)]
    rounds = max(1, calls // STREAMS)
    warming = max(1, int(rounds * WARM_UP))
    for leg, until in ((warming, time.monotonic() + seconds * WARM_UP), (rounds - warming, deadline)):
        await asyncio.gather(*(stream.run(leg, until) for stream in streams))
        seen.weigh(folder)
    seen.calls = sum(len(stream.times) for stream in streams)
    halves = [(stream.times[: len(stream.times) // 2], stream.times[len(stream.times) // 2 :]) for stream in streams]
    seen.p99 = [percentile([one for half in part for one in half]) for part in zip(*halves, strict=True)]
    return seen
