"""Finds dead boots and settles what they left: run again where harmless, `lost` where nobody can know."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forge_tools.errors import ForgeError
from forge_tools.sandbox.leftovers import end
from forge_tools.sandbox.marks import boot_mark
from forge_tools.storage import Store
from workers.clocks import ClockWatch

LEASE = "recovery"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sighting:
    beat: int
    since: float


class Recovery:
    """Every worker compares beats over time, so that whoever holds the lease can act at once; one at a time does.

    None trusts a clock that it did not watch itself. A boot is dead only if its beat stayed the same for one lease during
    which all of this worker's own beats succeeded: so neither a database outage, nor a clock step, nor a suspended machine
    condemns anybody.
    """

    def __init__(self, store: Store, boot: str, lease: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._boot = boot
        self._lease = lease
        self._clock = clock
        self._sightings: dict[str, _Sighting] = {}
        self._last_look = 0.0

    async def keep(
        self, every: float, acknowledged_at: Callable[[], float], tell: Callable[[Iterable[tuple[str, str]]], None]
    ) -> None:
        """Look for ever, while our own beats are acknowledged and the database's clock is steady.

        `tell` hears (submitter, id) of the executions that end by it.
        """
        clocks = ClockWatch(self._store, self._boot, self._lease)
        while True:
            await asyncio.sleep(every)
            try:
                if time.monotonic() - acknowledged_at() > self._lease / 2 or not await clocks.is_steady():
                    self.interrupted()
                elif ended := await self.step():
                    tell(await self._store.queue.submitters(ended))
            except ForgeError as error:
                self.interrupted()
                logger.warning("Recovery step failed", extra={"error": str(error)})

    def interrupted(self) -> None:
        """Our own beat failed or came late: whatever was seen before no longer counts."""
        self._sightings.clear()

    async def step(self) -> list[str]:
        """Look once: condemn what is dead, sweep what is over. Call it about once a heartbeat or slower.

        Returns the ids of the executions that ended by it, so that their submitters can be told.
        """
        now = self._clock()
        if now - self._last_look > self._lease / 2:
            self.interrupted()
        self._last_look = now
        dead = self._dead(await self._store.workers.beats(), now)
        if not await self._store.workers.take_lease(LEASE, self._boot, self._lease):
            return []
        ended = []
        for boot in dead:
            ended += await self._settle(boot)
        return ended + await self._store.queue.sweep()  # last: a call to be cancelled may have been on a dead worker

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

    async def _settle(self, boot: str) -> list[str]:
        """First end what still runs on this host: what tools left, and the children if their worker only froze."""
        beat = self._sightings[boot].beat
        if (await self._store.workers.beats()).get(boot) != beat:
            return []
        try:
            await asyncio.to_thread(end, boot_mark(boot))
        except OSError as error:
            logger.error("What a dead worker left running lives on", extra={"boot": boot, "error": str(error)})
        requeued, lost = await self._store.queue.recover(boot, f"no heartbeat for {self._lease:g}s", beat)
        logger.warning(
            "A worker died; its executions are settled",
            extra={"boot": boot, "requeued": len(requeued), "lost": len(lost)},
        )
        return lost
