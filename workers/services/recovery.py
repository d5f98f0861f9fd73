"""Finds dead workers and settles what they left: run again if harmless, `lost` if nobody can know."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from forge_tools.errors import ForgeError
from forge_tools.sandbox.processes.endings import end
from forge_tools.sandbox.processes.environment import instance_mark
from forge_tools.sandbox.walls.cgroups import Limits
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import BEATS, NOW, OVER, Answers, Question
from workers.services.service import Leadership, Service

LEASE = "recovery"
CLOCK_LEASE = "clock"
CALM = 1 / 5
"""For this part of a lease after a clock step, nothing is judged by the database's clock: deadlines follow first."""

LEASES_BETWEEN_SEARCHES = 40

Tell = Callable[[Iterable[tuple[str, str]]], None]
"""Notifies the submitters, given as (submitter, id)."""

logger = logging.getLogger(__name__)


class _Sighting(NamedTuple):
    beat: int
    since: float


class ClockWatch:
    """Notices that the database's clock was set, or that the machine slept, and makes the queue's deadlines follow.

    It compares the database's clock with our own, which nobody sets, between two heartbeats; one worker acts for all. A
    database in a file sleeps when this machine does, and its calls keep their time. A server has continued meanwhile.
    """

    def __init__(self, store: Store, worker_id: str, lease: float, *, clock: Callable[[], float] | None = None) -> None:
        self._store = store
        self._worker_id = worker_id
        self._lease = lease
        self._clock = clock or (time.monotonic if store.dialect == "sqlite" else _since_boot)
        self._asked = 0.0
        self._last: tuple[float, float] | None = None
        self._unsteady_at = 0.0
        self._step = 0.0

    def ask(self) -> None:
        """Record our own time; the database is asked for its time next."""
        self._asked = self._clock()

    def hear(self, there: float) -> bool:
        """Take the answer; return whether the clock was certainly not set since the previous heartbeat.

        If not, nothing that came with it may be judged, nor anything by the clock for a while.
        """
        here = self._asked
        is_prompt = self._clock() - here <= self._lease / 2
        last, self._last = self._last, (here, there) if is_prompt else None
        if last is not None and is_prompt and here - last[0] <= self._lease / 2:
            moved = (there - last[1]) - (here - last[0])
            if abs(moved) < self._lease:
                return True
            self._step += moved
        self._unsteady_at = here
        return False

    @property
    def is_calm(self) -> bool:
        """Whether deadlines can be judged by that clock: another worker may still be about to make them follow."""
        return self._asked - self._unsteady_at >= CALM * self._lease

    async def follow(self) -> None:
        """Make the deadlines follow a reported step, if that is for this worker to do."""
        moved = self._step
        if moved and await self._store.workers.take_lease(CLOCK_LEASE, self._worker_id, self._lease):
            rows = await self._store.transitions.follow_clock(moved)
            logger.warning(
                "The database's clock was changed; deadlines are adjusted",
                extra={"seconds": round(moved, 1), "executions": rows},
            )
        self._step -= moved  # now: what failed is tried again


class Recovery(Service):
    """Every worker compares beats over time, so that whoever holds the lease can act at once; one at a time does.

    None trusts a clock that it did not watch itself. A worker is dead only if its beat stayed the same for one lease
    during which all of this worker's own beats succeeded: so neither a database outage, nor a clock step, nor a
    suspended machine makes anybody count as dead. The beats of others come with the answer to our own, in one
    statement: if it succeeded, we have seen them.
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
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock`: None is the loop's."""
        super().__init__()
        self._store = store
        self._worker_id = worker_id
        self._lease = lease
        self._clocks = clocks
        self._leadership = leadership
        self._tell = tell
        self._clock = clock or asyncio.get_running_loop().time
        self._sightings: dict[str, _Sighting] = {}
        self._unlisted: dict[str, int] = {}
        self._searched_at = float("-inf")
        self._asked = self._seen_at = 0.0
        self._seen: Answers | None = None

    def ask(self) -> Sequence[Question[Any]]:
        self._asked, before = self._clock(), self._asked
        if self._asked - before > self._lease / 2:
            self.missed()
        self._clocks.ask()
        return NOW, BEATS, OVER

    def hear(self, answers: Answers) -> None:
        """Compare a heartbeat's answers with the earlier ones. Call it for each heartbeat that succeeds."""
        self.woken.set()  # in any case: if nothing can be judged now, deadlines may have a clock to follow
        now, beats = self._clock(), answers[BEATS]
        if not self._clocks.hear(answers[NOW]) or now - self._asked > self._lease / 2:
            self.missed()
            return
        if self._leadership.living - beats.keys():  # a worker that stopped, or was found dead, may still own rows
            self._searched_at = float("-inf")
        self._leadership.living = frozenset(beats)
        known = self._unlisted | dict(beats)
        self._sightings = {worker: seen for worker, seen in self._sightings.items() if known.get(worker) == seen.beat}
        for worker, beat in known.items():
            self._sightings.setdefault(worker, _Sighting(beat, now))
        self._seen, self._seen_at = answers, self._asked

    def missed(self) -> None:
        """Discard what was seen before: our own heartbeat failed or came late."""
        self._sightings.clear()
        self._seen = None

    async def step(self) -> None:
        """Act on the last heartbeat: make deadlines follow the clock, then settle, sweep, and notify the submitters."""
        try:
            await self._clocks.follow()
            if self._clocks.is_calm and (ended := await self.settle()):
                self._tell(await self._store.transitions.listeners(ended))
        except ForgeError:
            self.missed()
            raise

    async def settle(self) -> list[str]:
        """Settle dead workers and sweep executions that are over, if any; returns the ids of those that ended by it."""
        seen, self._seen = self._seen, None
        if seen is None:
            return []
        await self._search(seen)
        dead, is_over = self._dead(), seen[OVER]
        if not (dead or is_over) or not await self._store.workers.take_lease(LEASE, self._worker_id, self._lease):
            return []
        ended = []
        for worker, beat in dead.items():
            ended += await self._settle(worker, beat)
        # Last: a call to be cancelled may have been on a dead worker.
        return ended + await self._store.transitions.sweep()

    async def _search(self, seen: Answers) -> None:
        """Find owners of rows whose beats no heartbeat returns.

        This reads the whole queue, so only the leader does it, and rarely.
        """
        if not self._leadership.is_mine:
            self._searched_at = float("-inf")
            self._unlisted = {}
        elif self._clock() - self._searched_at >= LEASES_BETWEEN_SEARCHES * self._lease:
            self._searched_at = self._clock()  # now: a failing search must not keep all dead workers waiting
            found = await self._store.workers.beats()
            self._unlisted = {worker: beat for worker, beat in found.items() if worker not in seen[BEATS]}

    def _dead(self) -> dict[str, int]:
        """Return workers whose beat stood still. Time counts from an answer's arrival to the last question sent."""
        return {
            worker: seen.beat
            for worker, seen in self._sightings.items()
            if worker != self._worker_id and self._seen_at - seen.since >= self._lease
        }

    async def _settle(self, worker: str, beat: int) -> list[str]:
        """Settle a worker, first ending what still runs on this host: tools' leftovers, and children if it froze."""
        self._unlisted.pop(worker, None)
        if (await self._store.workers.beats()).get(worker) != beat:  # it has sent a heartbeat since, or was settled
            return []
        try:
            await asyncio.to_thread(end, instance_mark(worker))
            await asyncio.to_thread(Limits.given().end_worker, worker)
        except OSError as error:
            logger.error(
                "Processes that a dead worker left running cannot be ended",
                extra={"worker": worker, "error": str(error)},
            )
        requeued, lost = await self._store.transitions.recover(worker, f"no heartbeat for {self._lease:g}s", beat)
        logger.warning(
            "A worker died; its executions are settled",
            extra={"worker": worker, "requeued": len(requeued), "lost": len(lost)},
        )
        return lost


def _since_boot() -> float:
    """Return a monotonic clock that continues while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
