"""What the kill scene calls, and when: the same for both sides."""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.tools import charge, fetch, notify, render
from forge_tools.base import BaseTool

COUNT = 200
EVERY = 0.02
"""Seconds from one call to the next."""
SECONDS = (0.15, 0.45)
"""How long a call takes."""

_SEED = 7


@dataclass(frozen=True, slots=True)
class Work:
    """One call. The key names it in the effects of either side."""

    number: int
    tool: BaseTool
    seconds: float

    @property
    def key(self) -> str:
        return f"{self.tool.name}-{self.number}"

    @property
    def is_idempotent(self) -> bool:
        return self.tool.capabilities.idempotent

    def parameters(self, log: Path) -> dict[str, Any]:
        """The parameters that both sides pass."""
        return {"key": self.key, "seconds": self.seconds, "log": str(log)}


def schedule() -> list[Work]:
    """Mixed calls, a quarter of each kind: harmless to repeat or not, in either lane."""
    chance = random.Random(_SEED)  # noqa: S311 a schedule, no secret
    tools: list[BaseTool] = [fetch, notify, render, charge] * (COUNT // 4)
    chance.shuffle(tools)
    return [Work(number, tool, round(chance.uniform(*SECONDS), 2)) for number, tool in enumerate(tools)]


def due(number: int, began: float) -> float:
    """When the call with this number is made, on the monotonic clock."""
    return began + number * EVERY


def at_its_time(works: Iterable[Work], began: float, is_over: Callable[[], bool]) -> Iterator[Work]:
    """Yield each call when it is due, in a thread that has nothing else to do."""
    for work in works:
        time.sleep(max(0.0, due(work.number, began) - time.monotonic()))
        if is_over():
            return
        yield work


def keys(works: Sequence[Work], *, idempotent: bool) -> set[str]:
    """The keys of those calls that are, or are not, harmless to repeat."""
    return {work.key for work in works if work.is_idempotent is idempotent}
