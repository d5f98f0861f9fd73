"""Finds dead workers and settles what they left: run again where harmless, `lost` where nobody can know."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_tools.errors import ForgeError
from forge_tools.sandbox.processes.endings import end
from forge_tools.sandbox.processes.environment import boot_mark
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import BEATS, NOW, OVER, Answers, Question
from workers.services.clock import ClockWatch
from workers.services.heartbeat import Asker
from workers.services.service import Leadership, Service

LEASE = "recovery"
LEASES_BETWEEN_SEARCHES = 40

Tell = Callable[[Iterable[tuple[str, str]]], None]
"""Notifies the submitters, given as (submitter, id)."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sighting:
    beat: int
    since: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a heartbeat showed: who lives, with their beats, and whether anything waits for what will not come."""

    beats: Mapping[str, int]
    is_over: bool


class Recovery(Service, Asker):
    """Every worker compares beats over time, so that whoever holds the lease can act at once; one at a time does.

    None trusts a clock that it did not watch itself. A worker is dead only if its beat stayed the same for one lease during
    which all of this worker's own beats succeeded: so neither a database outage, nor a clock step, nor a suspended machine
    condemns anybody. The beats of others come with the answer to our own, which is one statement: it has seen them if it
    succeeded.
    """

    name = "recovery"
    failure = "Recovery step failed"

    def __init__(
        self,
        store: Store,
        worker_id: str,
        lease: float,
        clocks: ClockWatch,
        leadership: Leadership,
        *,
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._store = store
        self._worker_id = worker_id
        self._lease = lease
        self._clocks = clocks
        self._leadership = leadership
        self._tell = tell
        self._clock = clock
        self._sightings: dict[str, _Sighting] = {}
        self._strays: dict[str, int] = {}
        self._searched_at = float("-inf")
        self._asked = self._seen_at = 0.0
        self._seen: _Seen | None = None

    def ask(self) -> Sequence[Question[Any]]:
        self._asked, before = self._clock(), self._asked
        if self._asked - before > self._lease / 2:
            self.missed()
        self._clocks.ask()
        return NOW, BEATS, OVER

    def hear(self, answers: Answers) -> None:
        """Compare what a heartbeat brought with those before. Call it for each one that succeeds."""
        self.woken.set()
        now, beats = self._clock(), answers[BEATS]
        if not self._clocks.hear(answers[NOW]) or now - self._asked > self._lease / 2:
            self.missed()
            return
        if self._leadership.living - beats.keys():  # who stopped, or was found dead, may own rows all the same
            self._searched_at = float("-inf")
        self._leadership.living = frozenset(beats)
        known = self._strays | dict(beats)
        self._sightings = {worker: seen for worker, seen in self._sightings.items() if known.get(worker) == seen.beat}
        for worker, beat in known.items():
            self._sightings.setdefault(worker, _Sighting(beat, now))
        self._seen, self._seen_at = _Seen(beats, answers[OVER]), self._asked

    def missed(self) -> None:
        """Our own heartbeat failed or came late: whatever was seen before no longer counts."""
        self._sightings.clear()
        self._seen = None

    async def step(self) -> None:
        """Act on the last heartbeat: have the deadlines follow the clock, then settle and sweep, and tell the submitters."""
        try:
            await self._clocks.follow()
            if self._clocks.is_calm and (ended := await self.settle()):
                self._tell(await self._store.queue.listeners(ended))
        except ForgeError:
            self.missed()
            raise

    async def settle(self) -> list[str]:
        """Settle what is dead and sweep what is over, if there is any; returns the ids of the executions that ended by it."""
        seen, self._seen = self._seen, None
        if seen is None:
            return []
        await self._search(seen)
        dead = self._dead()
        if not (dead or seen.is_over) or not await self._store.workers.take_lease(LEASE, self._worker_id, self._lease):
            return []
        ended = []
        for worker, beat in dead.items():
            ended += await self._settle(worker, beat)
        return ended + await self._store.queue.sweep()  # last: a call to be cancelled may have been on a dead worker

    async def _search(self, seen: _Seen) -> None:
        """Find owners of rows whose beats no heartbeat brings. That reads the whole queue, so the leader does it, seldom."""
        if not self._leadership.is_mine:
            self._searched_at = float("-inf")
            self._strays = {}
        elif self._clock() - self._searched_at >= LEASES_BETWEEN_SEARCHES * self._lease:
            self._searched_at = self._clock()  # now: a search that fails must not keep all that is dead waiting
            found = await self._store.workers.beats()
            self._strays = {worker: beat for worker, beat in found.items() if worker not in seen.beats}

    def _dead(self) -> dict[str, int]:
        """What stands still, with its beat. Seen counts from when an answer came, to when the last question was sent."""
        return {
            worker: seen.beat
            for worker, seen in self._sightings.items()
            if worker != self._worker_id and self._seen_at - seen.since >= self._lease
        }

    async def _settle(self, worker: str, beat: int) -> list[str]:
        """First end what still runs on this host: what tools left, and the children if their worker only froze."""
        self._strays.pop(worker, None)
        if (await self._store.workers.beats()).get(worker) != beat:
            return []
        try:
            await asyncio.to_thread(end, boot_mark(worker))
        except OSError as error:
            logger.error("What a dead worker left running lives on", extra={"worker": worker, "error": str(error)})
        requeued, lost = await self._store.queue.recover(worker, f"no heartbeat for {self._lease:g}s", beat)
        logger.warning(
            "A worker died; its executions are settled",
            extra={"worker": worker, "requeued": len(requeued), "lost": len(lost)},
        )
        return lost
