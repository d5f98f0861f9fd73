"""Notices that the database's clock was set, or that the machine slept, and has the queue's deadlines follow."""

import logging
import time
from collections.abc import Callable

from forge_tools.storage import Store

LEASE = "clock"

logger = logging.getLogger(__name__)


class ClockWatch:
    """Compares the database's clock with our own, which nobody sets, between two looks; one worker acts for all.

    A database in a file sleeps when this machine does, and its calls keep their time. A server has gone on meanwhile.
    """

    def __init__(self, store: Store, boot: str, lease: float, *, clock: Callable[[], float] | None = None) -> None:
        self._store = store
        self._boot = boot
        self._lease = lease
        self._clock = clock or (time.monotonic if store.dialect == "sqlite" else _since_start)
        self._last: tuple[float, float] | None = None

    async def is_steady(self) -> bool:
        """Look once; whether the clock is known not to have been set since the look before.

        If not, nothing is to be judged by it in this round: another worker may be about to have the deadlines follow.
        """
        here = self._clock()
        there = await self._store.clock.now()
        is_prompt = self._clock() - here <= self._lease / 2
        last, self._last = self._last, (here, there) if is_prompt else None
        if last is None or self._last is None or here - last[0] > self._lease / 2:
            return False
        moved = (there - last[1]) - (here - last[0])
        if abs(moved) < self._lease:
            return True
        if await self._store.workers.take_lease(LEASE, self._boot, self._lease):
            rows = await self._store.clock.follow(moved)
            logger.warning(
                "The database's clock was set; deadlines follow", extra={"seconds": round(moved, 1), "executions": rows}
            )
        return False


def _since_start() -> float:
    """A monotonic clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
