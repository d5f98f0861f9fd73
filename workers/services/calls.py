"""What a worker learns of calls beside messages: which are due, which are to be cancelled, and that messages no longer come."""

import asyncio
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from forge_tools.broker import Broker, backlog, celery_app
from forge_tools.model import Scope, Wakeup, WorkerRecord
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import CANCELS, DUE, Answers, Question
from workers.activity import Activity
from workers.claims import DUE_UNREAD, Claims
from workers.lanes.base import BodyLane
from workers.services.service import Service

if TYPE_CHECKING:
    from celery import Celery

LOOKS_BETWEEN_COUNTS = 5

LOOKS = 5
"""Looks in a row before a verdict: Celery may wait half a minute before it meets a broker again that had gone."""

FORCE_SECONDS = 30.0

logger = logging.getLogger(__name__)


class DueCalls(Service):
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


class Cancels(Service):
    """Listens on the channel of this worker instance. Anybody may write there: what does not run here is nothing to ask for.

    What is asked for while a statement is under way waits for the next one.
    """

    name = "cancels"
    failure = "Cancels cannot be read; the next heartbeat reads them"

    def __init__(self, store: Store, worker_id: str, broker: Broker, lane: BodyLane) -> None:
        super().__init__()
        self._store = store
        self._worker_id = worker_id
        self._lane = lane
        broker.listen(worker_id, self._notified)

    def ask(self) -> Sequence[Question[Any]]:
        return (CANCELS,)

    def hear(self, answers: Answers) -> None:
        self._cancel(answers[CANCELS])

    async def step(self) -> None:
        self._cancel(await self._store.transitions.cancels(self._worker_id))

    def _notified(self, notification: bytes) -> None:
        if any(claim.id.encode() in notification for claim in self._lane.running()):
            self.woken.set()

    def _cancel(self, asked: Iterable[Wakeup]) -> None:
        for wakeup in asked:
            self._lane.cancel(wakeup.id, wakeup.attempt)


class Idle(Protocol):
    """What tells whether a worker waits for messages alone, and when it was woken last, on the monotonic clock."""

    woken_at: float

    def is_idle(self) -> bool: ...


class Delivery(Service):
    """Looks at the broker queues now and then while this worker is idle; messages that stay there in its sight are proof.

    A look counts if the broker answers, messages wait, slots are free and no message came since the look before. A worker that
    is proven deaf is ended: politely, then by force if Celery does not even hear that.
    """

    name = "delivery"
    failure = "The broker queues cannot be checked"

    def __init__(self, broker_url: str, queues: Sequence[str], claims: Idle, interval: float) -> None:
        super().__init__(interval)
        self._broker_url = broker_url
        self._queues = list(queues)
        self._claims = claims
        self._app: Celery | None = None
        self._looked_at = time.monotonic()
        self._suspicious = 0

    async def step(self) -> float | None:
        if self._suspicious >= LOOKS:
            self._suspicious = 0  # one that drains is not idle, and not to be asked twice
            self._end_by_force()
            return None
        waiting = await asyncio.to_thread(self._count) if self._hears_nothing() else 0
        self._judge(waiting if self._hears_nothing() else 0)
        self._looked_at = time.monotonic()
        if self._suspicious < LOOKS:
            return None
        logger.critical(
            "Messages wait at the broker but none arrives here; this worker ends, so that another takes its place",
            extra={"queues": ",".join(self._queues), "looks": LOOKS, "seconds": LOOKS * (self.interval or 0.0)},
        )
        os.kill(os.getpid(), signal.SIGTERM)
        return FORCE_SECONDS

    def _hears_nothing(self) -> bool:
        return self._claims.is_idle() and self._claims.woken_at < self._looked_at

    def _end_by_force(self) -> None:
        if self._claims.is_idle():  # it does not even drain
            logger.critical("This worker does not stop; it is killed")
            os.kill(os.getpid(), signal.SIGKILL)

    def _judge(self, waiting: int) -> None:
        self._suspicious = self._suspicious + 1 if waiting else 0
        if self._suspicious > 1:
            logger.warning("Messages wait at the broker but none arrives here", extra={"waiting": waiting})

    def _count(self) -> int:
        """How many messages wait; none while the broker does not answer."""
        if self._app is None:
            self._app = celery_app(self._broker_url)
        try:
            return backlog(self._app, self._queues)
        except Exception as error:  # noqa: BLE001 every transport has its own errors; one that fails says nothing of us
            logger.debug("The broker queues cannot be read", extra={"error": str(error)})
            return 0
