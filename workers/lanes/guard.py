"""The timer that ends a body which did not stop by itself."""

import asyncio
import time
from collections.abc import Callable

STALL_SECONDS = 0.5


class Guard:
    """Calls `fire` once after `seconds`, unless stopped.

    When the loop itself was late (a suspended process, a stalled engine), the body may have returned in time and its outcome
    may be waiting behind this timer: it then waits the same `patience` once more before it judges.
    """

    def __init__(self, seconds: float, fire: Callable[[], None], *, patience: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._fire = fire
        self._patience = patience
        self._arm(seconds)

    def stop(self) -> None:
        """Fire no more, and let go of what would have been told: it holds the body, which holds this."""
        self._timer.cancel()
        self._fire = _nothing

    def _arm(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds
        self._timer = self._loop.call_later(seconds, self._come_due)

    def _come_due(self) -> None:
        if time.monotonic() - self._due > STALL_SECONDS:
            self._arm(self._patience)
        else:
            self._fire()


def _nothing() -> None:
    """What is fired once it is stopped."""
