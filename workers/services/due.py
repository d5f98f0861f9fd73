"""Takes from SQL what no message came for: this worker's own part at once, what its peers left a look later."""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from forge_tools.model import Scope, Wakeup, WorkerRecord
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import DUE, Answers, Question
from workers.activity import Activity
from workers.claims import DUE_UNREAD, Claims
from workers.services.heartbeat import Asker
from workers.services.service import Service

LOOKS_BETWEEN_COUNTS = 5


class DueCalls(Service, Asker):
    """Messages may be lost, rows are not: heartbeats ask for due rows at once when no message came lately, now and then when busy."""

    name = "due calls"
    failure = DUE_UNREAD

    def __init__(self, claims: Claims, share: "Share", activity: Activity) -> None:
        super().__init__()
        self.woken = activity.is_due
        self._claims = claims
        self._share = share
        self._activity = activity
        self._has_asked = False

    def ask(self) -> Sequence[Question[Any]]:
        self._has_asked = self._claims.free_slots() > 0 and self._claims.is_time_to_pull()
        return (DUE,) if self._has_asked else ()

    def hear(self, answers: Answers) -> None:
        if self._has_asked:
            self._claims.has_pulled()
            if answers[DUE]:
                self.woken.set()

    async def step(self) -> None:
        """Take due rows while there may be more than there was room for."""
        claims, is_full = self._claims, True
        while is_full and claims.free_slots() > 0:
            claims.has_pulled()
            due, is_full = await self._share.due(claims.scope, claims.free_slots)
            await claims.start(due)
            if is_full:  # go on as soon as a slot is free, unless messages have come
                await self._activity.until(lambda: claims.is_closed or claims.free_slots() > 0)
                is_full = claims.is_time_to_pull()


class Share:
    """Divides a burst by the ids of its rows among the workers that live, so that the first to look does not take it all.

    Nobody waits for a peer that is full, lacks the tool or has just died: its part is free for all at their next look.
    """

    def __init__(
        self,
        store: Store,
        scope: Scope,
        *,
        heartbeat: float,
        lease: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._scope = scope
        self._interval = LOOKS_BETWEEN_COUNTS * heartbeat
        self._patience = heartbeat / 2
        self._lease = lease
        self._clock = clock
        self._workers = [scope.instance]
        self._counted_at = float("-inf")
        self._left: frozenset[Wakeup] = frozenset()

    async def due(self, claimable: Scope, free: Callable[[], int]) -> tuple[list[Wakeup], bool]:
        """Due rows to take now, as many as are `free` at most, and whether there may be more for this worker."""
        await self._count()
        limit = max(0, free()) * len(self._workers)
        due = await self._store.queue.due(claimable, limit)
        if self._is_burst(due) and len(due) < limit:
            await asyncio.sleep(self._patience)
            seen = frozenset(due)
            due = [wakeup for wakeup in await self._store.queue.due(claimable, limit) if wakeup in seen]
        part = self._part_of(due, limit)
        mine = part[: max(0, free())]
        self._left = frozenset(due) - frozenset(mine)
        return mine, len(mine) < len(part) or len(due) >= limit

    def _is_burst(self, due: Sequence[Wakeup]) -> bool:
        """Whether so much is due that it matters who takes it; most likely messages for it come this moment."""
        return len(self._workers) > 1 and len(due) >= 2 * len(self._workers)

    def _part_of(self, due: Sequence[Wakeup], limit: int) -> list[Wakeup]:
        if not self._is_burst(due):
            return list(due)
        if len(due) >= limit:  # enough for everybody: take what there is room for
            return sorted(due, key=self._is_mine, reverse=True)
        return [wakeup for wakeup in due if self._is_mine(wakeup) or wakeup in self._left]

    async def _count(self) -> None:
        now = self._clock()
        if now - self._counted_at < self._interval:
            return
        self._counted_at = now
        live = await self._store.workers.list(seen_within=self._lease)
        self._workers = sorted({self._scope.instance, *(one.id for one in live if self._is_peer(one))})

    def _is_peer(self, worker: WorkerRecord) -> bool:
        serves = not set(worker.queues).isdisjoint(self._scope.queues)
        return worker.lane == self._scope.lane and serves and worker.stopped_at is None

    def _is_mine(self, wakeup: Wakeup) -> bool:
        return self._workers[uuid.UUID(wakeup.id).int % len(self._workers)] == self._scope.instance
