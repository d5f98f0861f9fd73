"""Who goes first where calls queue up: the first few calls of each client in a second, before the bulk of any."""

import time
from collections.abc import Callable

PROMPT_CALLS = 32
"""Calls a second of one client that bulk gives way to; the others are its bulk."""


class Allowance:
    """What one client may put before other clients' bulk: so much at once, and as much again a second later.

    A client that waits for each call is never bulk however long others' backlogs are, and no client has to say which it is.
    Nobody starves: workers also take the calls that have waited longest, whatever messages say.
    """

    def __init__(self, size: int = PROMPT_CALLS, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        self._left = float(size)
        self._counted_at = clock()

    def take(self, wanted: int) -> int:
        """Use up to `wanted` of it; returns how many."""
        now = self._clock()
        self._left = min(self._size, self._left + (now - self._counted_at) * self._size)
        self._counted_at = now
        granted = min(wanted, int(self._left))
        self._left -= granted
        return granted
