"""Which due rows a worker takes when it looks in SQL: its own part at once, what its peers left a look later."""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence

from forge_tools.records import Scope, Wakeup, WorkerRecord
from forge_tools.storage import Store

LOOKS_BETWEEN_COUNTS = 5


class Sharing:
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
        self._boots = [scope.boot]
        self._counted_at = float("-inf")
        self._left: frozenset[Wakeup] = frozenset()

    async def due(self, claimable: Scope, free: Callable[[], int]) -> tuple[list[Wakeup], bool]:
        """Due rows to take now, as many as are `free` at most, and whether there may be more for this worker."""
        await self._count()
        limit = max(0, free()) * len(self._boots)
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
        return len(self._boots) > 1 and len(due) >= 2 * len(self._boots)

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
        self._boots = sorted({self._scope.boot, *(one.id for one in live if self._is_peer(one))})

    def _is_peer(self, worker: WorkerRecord) -> bool:
        serves = not set(worker.queues).isdisjoint(self._scope.queues)
        return worker.lane == self._scope.lane and serves and worker.stopped_at is None

    def _is_mine(self, wakeup: Wakeup) -> bool:
        return self._boots[uuid.UUID(wakeup.id).int % len(self._boots)] == self._scope.boot
