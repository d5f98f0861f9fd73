"""Notices that the database's clock was set, or that the machine slept, and has the queue's deadlines follow."""

import logging
import time
from collections.abc import Callable

from forge_tools.storage import Store

LEASE = "clock"
CALM = 1 / 5
"""Of a lease: how long after a step nothing is judged by that clock, so that whoever acts has had the deadlines follow."""

logger = logging.getLogger(__name__)


class ClockWatch:
    """Compares the database's clock with our own, which nobody sets, between two heartbeats; one worker acts for all.

    A database in a file sleeps when this machine does, and its calls keep their time. A server has gone on meanwhile.
    """

    def __init__(self, store: Store, worker_id: str, lease: float, *, clock: Callable[[], float] | None = None) -> None:
        self._store = store
        self._worker_id = worker_id
        self._lease = lease
        self._clock = clock or (time.monotonic if store.dialect == "sqlite" else _since_start)
        self._asked = 0.0
        self._last: tuple[float, float] | None = None
        self._unsteady_at = 0.0
        self._step = 0.0

    def ask(self) -> None:
        """Note our own time; the database is asked for its next."""
        self._asked = self._clock()

    def hear(self, there: float) -> bool:
        """Take the answer; whether the clock is known not to have been set since the heartbeat before.

        If not, nothing is to be judged by what came with it, nor by the clock for a while.
        """
        is_steady = self._compare(there)
        if not is_steady:
            self._unsteady_at = self._asked
        return is_steady

    @property
    def is_calm(self) -> bool:
        """Whether deadlines can be judged by that clock: another worker might still be about to have them follow."""
        return self._asked - self._unsteady_at >= CALM * self._lease

    async def follow(self) -> None:
        """Have the deadlines follow a step that was heard of, if it is for this worker to do."""
        moved, self._step = self._step, 0.0
        if moved and await self._store.workers.take_lease(LEASE, self._worker_id, self._lease):
            rows = await self._store.clock.follow(moved)
            logger.warning(
                "The database's clock was set; deadlines follow", extra={"seconds": round(moved, 1), "executions": rows}
            )

    def _compare(self, there: float) -> bool:
        here = self._asked
        is_prompt = self._clock() - here <= self._lease / 2
        last, self._last = self._last, (here, there) if is_prompt else None
        if last is None or self._last is None or here - last[0] > self._lease / 2:
            return False
        moved = (there - last[1]) - (here - last[0])
        if abs(moved) < self._lease:
            return True
        self._step += moved
        return False


def _since_start() -> float:
    """A monotonic clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
