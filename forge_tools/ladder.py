"""The timeout ladder: what ends a body that does not stop, each step later than the one before it."""

import math
from dataclasses import dataclass
from typing import NamedTuple


class Limits(NamedTuple):
    """A timeout as time limits of Celery's, in whole seconds from the start of the body."""

    soft: int
    hard: int


@dataclass(frozen=True, slots=True)
class Ladder:
    """When each step follows, in seconds from the start of a body.

    1. At its timeout the executor cancels its coroutine, in the process that runs it.
    2. A `grace` later the engine ends it by force; an engine that was late, and knows it, waits for as long once more.
    3. Then Celery's soft limit warns. A `lease` after that, in which a living engine would have spoken, its hard limit kills the process.
    """

    grace: float
    lease: float

    def force(self, timeout: float) -> float:
        """When the engine ends it by force."""
        return timeout + self.grace

    def limits(self, timeout: float) -> Limits:
        """When Celery does."""
        soft = self.force(timeout) + self.grace
        return Limits(math.ceil(soft), math.ceil(soft + self.lease))


def timed_out_after(seconds: float) -> str:
    """What the result of such a body says (S4-16)."""
    return f"Tool timed out after {seconds:g}s"
