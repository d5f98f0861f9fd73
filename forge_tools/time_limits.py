"""What ends a body that does not stop after its timeout: each step comes later than the previous one."""

import math
from dataclasses import dataclass
from typing import NamedTuple


class CeleryLimits(NamedTuple):
    """A timeout as Celery's time limits, in whole seconds from the start of the body."""

    soft: int
    hard: int


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """When each step follows, in seconds from the start of a body.

    1. At the timeout, the executor cancels the body's coroutine, in the process that runs it.
    2. A `grace` later, the engine ends it by force; an engine that notices that it is late waits for another `grace`.
    3. Then Celery's soft limit warns. A `lease` later, in which a living engine would have acted, its hard limit kills
       the process.
    """

    grace: float
    lease: float

    def force(self, timeout: float) -> float:
        return timeout + self.grace

    def limits(self, timeout: float) -> CeleryLimits:
        soft = self.force(timeout) + self.grace
        return CeleryLimits(math.ceil(soft), math.ceil(soft + self.lease))


def timed_out_after(seconds: float) -> str:
    """Return the error text of such a body's result (S4-16)."""
    return f"Tool timed out after {seconds:g}s"
