"""How long a body may take, so that it answers with what it has before its call is timed out."""

import time

from forge_tools.records import ExecutionContext


class Deadline:
    """The moment by which a body should be done: 10 % of its timeout, at most 2 s, before the call is over."""

    def __init__(self, context: ExecutionContext) -> None:
        self.margin = min(2.0, context.timeout / 10)
        self._at = time.monotonic() + context.timeout - self.margin

    @property
    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._at - time.monotonic())

    @property
    def until_the_end(self) -> float:
        """Seconds until the call is ended from outside, never below zero."""
        return max(0.0, self._at + self.margin - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._at
