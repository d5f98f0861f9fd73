"""Finds dead boots and settles what they left: run again where harmless, `lost` where nobody can know."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from forge_tools.storage import Store

LEASE = "recovery"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sighting:
    beat: int
    since: float


class Recovery:
    """One leaseholder at a time compares beats over time; it never trusts a clock that it did not watch itself.

    A boot is dead only if its beat stayed the same for one lease during which all of this worker's own beats succeeded:
    so neither a database outage, nor a clock step, nor a suspended machine condemns anybody.
    """

    def __init__(self, store: Store, boot: str, lease: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._boot = boot
        self._lease = lease
        self._clock = clock
        self._sightings: dict[str, _Sighting] = {}
        self._watched_since: float | None = None
        self._last_look = 0.0

    def interrupted(self) -> None:
        """Our own beat failed or came late: whatever was seen before no longer counts."""
        self._watched_since = None
        self._sightings.clear()

    async def step(self) -> None:
        """Look once: sweep what is over, condemn what is dead. Call it about once a heartbeat or slower."""
        now = self._clock()
        if now - self._last_look > self._lease / 2:
            self.interrupted()
        self._last_look = now
        if not await self._store.workers.take_lease(LEASE, self._boot, self._lease):
            self.interrupted()
            return
        if self._watched_since is None:
            self._watched_since = now
        await self._store.queue.sweep()
        for boot in self._dead(await self._store.workers.beats(), now):
            await self._settle(boot)

    def _dead(self, beats: dict[str, int], now: float) -> list[str]:
        self._sightings = {boot: seen for boot, seen in self._sightings.items() if boot in beats}
        dead = []
        for boot, beat in beats.items():
            seen = self._sightings.get(boot)
            if seen is None or seen.beat != beat:
                self._sightings[boot] = _Sighting(beat, now)
            elif boot != self._boot and now - seen.since >= self._lease:
                dead.append(boot)
        return dead

    async def _settle(self, boot: str) -> None:
        requeued, lost = await self._store.queue.recover(boot, f"no heartbeat for {self._lease:g}s")
        await self._store.workers.stop(boot)
        logger.warning(
            "A worker died; its executions are settled",
            extra={"boot": boot, "requeued": len(requeued), "lost": len(lost)},
        )
