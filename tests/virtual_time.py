"""An event loop whose clock jumps to the next timer: hours of waiting take no time."""

import asyncio
import selectors
from collections.abc import Coroutine
from functools import partial
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")

QUIET_SECONDS = 0.02
"""How long nothing may come from other threads, such as SQLite's, before the clock jumps."""


class VirtualClock(selectors.DefaultSelector):
    """A selector that does not wait for a timer."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self._step = step

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        ready = super().select(QUIET_SECONDS)
        if ready:
            return ready
        if timeout is None:
            return super().select(None)
        self.now += min(timeout, self._step)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time` is that of a `VirtualClock`."""

    def __init__(self, step: float) -> None:
        self.clock = VirtualClock(step)
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def run(work: Coroutine[Any, Any, T], *, step: float = inf) -> T:
    """Run that on a virtual loop, and end what it left. The clock jumps by a `step` at most: where disks may be slow, a little one."""
    with asyncio.Runner(loop_factory=partial(VirtualLoop, step)) as runner:
        return runner.run(work)
