"""Finds dead boots and settles what they left: run again where harmless, `lost` where nobody can know."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from forge_tools.errors import ForgeError
from forge_tools.sandbox.processes.endings import end
from forge_tools.sandbox.processes.environment import boot_mark
from forge_tools.storage import Store
from forge_tools.storage.looks import Look
from workers.clocks import ClockWatch

LEASE = "recovery"
LEASES_BETWEEN_SEARCHES = 40

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sighting:
    beat: int
    since: float


def is_eldest(boot: str, living: Set[str]) -> bool:
    """Whether a duty of one worker falls to this one: boots are in the order of time, and the oldest of the living has it."""
    return boot == min(living, default=boot)


class Recovery:
    """Every worker compares beats over time, so that whoever holds the lease can act at once; one at a time does.

    None trusts a clock that it did not watch itself. A boot is dead only if its beat stayed the same for one lease during
    which all of this worker's own beats succeeded: so neither a database outage, nor a clock step, nor a suspended machine
    condemns anybody. The beats of others come with the answer to our own, which is one statement: it has seen them if it
    succeeded.
    """

    def __init__(
        self,
        store: Store,
        boot: str,
        lease: float,
        clocks: ClockWatch,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.living: frozenset[str] = frozenset()
        """The boots that had not stopped at the last look."""
        self._store = store
        self._boot = boot
        self._lease = lease
        self._clocks = clocks
        self._clock = clock
        self._sightings: dict[str, _Sighting] = {}
        self._strays: dict[str, int] = {}
        self._searched_at = float("-inf")
        self._asked = self._seen_at = 0.0
        self._look: Look | None = None
        self._news = asyncio.Event()

    def ask(self) -> None:
        """Note the time; the next look is sent."""
        self._asked, before = self._clock(), self._asked
        if self._asked - before > self._lease / 2:
            self.interrupted()
        self._clocks.ask()

    def hear(self, look: Look) -> None:
        """Compare what a look brought with those before. Call it for each look that succeeds, once a heartbeat."""
        self._news.set()
        now = self._clock()
        if not self._clocks.hear(look.now) or now - self._asked > self._lease / 2:
            self.interrupted()
            return
        if self.living - look.beats.keys():  # who stopped, or was found dead, may own rows all the same
            self._searched_at = float("-inf")
        self.living = frozenset(look.beats)
        beats = self._strays | dict(look.beats)
        self._sightings = {boot: seen for boot, seen in self._sightings.items() if beats.get(boot) == seen.beat}
        for boot, beat in beats.items():
            self._sightings.setdefault(boot, _Sighting(beat, now))
        self._look, self._seen_at = look, self._asked

    def interrupted(self) -> None:
        """Our own beat failed or came late: whatever was seen before no longer counts."""
        self._sightings.clear()
        self._look = None

    async def keep(self, tell: Callable[[Iterable[tuple[str, str]]], None]) -> None:
        """Act for ever on what is heard. `tell` hears (submitter, id) of the executions that end by it."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._clocks.follow()
                if self._clocks.is_calm and (ended := await self.step()):
                    tell(await self._store.queue.listeners(ended))
            except ForgeError as error:
                self.interrupted()
                logger.warning("Recovery step failed", extra={"error": str(error)})

    async def step(self) -> list[str]:
        """Act on the last look, if there is anything to do: settle what is dead, sweep what is over.

        Returns the ids of the executions that ended by it, so that their submitters can be told.
        """
        look, self._look = self._look, None
        if look is None:
            return []
        await self._search(look)
        dead = self._dead()
        if not (dead or look.is_over) or not await self._store.workers.take_lease(LEASE, self._boot, self._lease):
            return []
        ended = []
        for boot, beat in dead.items():
            ended += await self._settle(boot, beat)
        return ended + await self._store.queue.sweep()  # last: a call to be cancelled may have been on a dead worker

    async def _search(self, look: Look) -> None:
        """Find owners of rows whose beats no look brings. That reads the whole queue, so the oldest boot does it, seldom."""
        if not is_eldest(self._boot, look.beats.keys()):
            self._searched_at = float("-inf")
            self._strays = {}
        elif self._clock() - self._searched_at >= LEASES_BETWEEN_SEARCHES * self._lease:
            self._searched_at = self._clock()  # now: a search that fails must not keep all that is dead waiting
            found = await self._store.workers.beats()
            self._strays = {boot: beat for boot, beat in found.items() if boot not in look.beats}

    def _dead(self) -> dict[str, int]:
        """What stands still, with its beat. Seen counts from when an answer came, to when the last question was sent."""
        return {
            boot: seen.beat
            for boot, seen in self._sightings.items()
            if boot != self._boot and self._seen_at - seen.since >= self._lease
        }

    async def _settle(self, boot: str, beat: int) -> list[str]:
        """First end what still runs on this host: what tools left, and the children if their worker only froze."""
        self._strays.pop(boot, None)
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
