"""What a worker learns about calls other than by messages: what is due or cancelled, and that messages have stopped."""

import asyncio
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from forge_tools.broker.celery_app import backlog, celery_app
from forge_tools.broker.message import Broker
from forge_tools.model.execution import Scope, Wakeup
from forge_tools.model.overview import WorkerRecord
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import CANCELS, DUE, Answers, Question
from workers.claims import DUE_UNREAD, Claims
from workers.lanes.base import BodyLane
from workers.middleware.base import Activity
from workers.services.service import Service

CHECKS_BETWEEN_COUNTS = 5

CHECKS = 5
"""Checks in a row before a verdict: Celery may take half a minute to reconnect to a broker."""

FORCE_SECONDS = 30.0

logger = logging.getLogger(__name__)


class DueCalls(Service):
    """Messages may be lost, rows are not: heartbeats ask for due rows if no message came lately; rarely when busy."""

    name = "due calls"
    failure = DUE_UNREAD

    def __init__(self, claims: Claims, share: "FairShare", activity: Activity) -> None:
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
        while is_full and claims.may_claim() and claims.free_slots() > 0:
            claims.has_pulled()
            due, is_full = await self._share.due(claims.scope, claims.free_slots)
            await claims.start(due)
            if is_full:  # continue as soon as a slot is free, unless messages have come
                await self._activity.until(lambda: claims.is_closed or claims.free_slots() > 0)
                is_full = claims.is_time_to_pull()


class FairShare:
    """Divides a burst by the ids of its rows among the live workers, so that the first to ask does not take it all.

    Nobody waits for a peer that is full, lacks the tool or has just died: its part is free for all at their next check.
    """

    def __init__(self, store: Store, scope: Scope, *, heartbeat: float, lease: float) -> None:
        self._store = store
        self._scope = scope
        self._interval = CHECKS_BETWEEN_COUNTS * heartbeat
        self._patience = heartbeat / 2
        self._lease = lease
        self._workers = [scope.instance]
        self._counted_at = float("-inf")
        self._left: frozenset[Wakeup] = frozenset()

    async def due(self, claimable: Scope, free: Callable[[], int]) -> tuple[list[Wakeup], bool]:
        """Return due rows to take now, at most as many as are `free`, and whether there may be more for this worker."""
        await self._count()
        limit = max(0, free()) * len(self._workers)
        due = await self._store.queue.due(claimable, limit)
        if self._is_burst(due) and len(due) < limit:
            # Messages may claim most of it meanwhile; rows that came since have messages of their own.
            await asyncio.sleep(self._patience)
            seen = frozenset(due)
            due = [wakeup for wakeup in await self._store.queue.due(claimable, limit) if wakeup in seen]
        part = self._part_of(due, limit)
        mine = part[: max(0, free())]
        self._left = frozenset(due) - frozenset(mine)
        return mine, len(mine) < len(part) or len(due) >= limit

    def _is_burst(self, due: Sequence[Wakeup]) -> bool:
        """Return whether so much is due that it matters who takes it; messages for it are probably about to come."""
        return len(self._workers) > 1 and len(due) >= 2 * len(self._workers)

    def _part_of(self, due: Sequence[Wakeup], limit: int) -> list[Wakeup]:
        if not self._is_burst(due):
            return list(due)
        if len(due) >= limit:  # enough for everybody: take what there is room for
            return sorted(due, key=self._is_mine, reverse=True)
        return [wakeup for wakeup in due if self._is_mine(wakeup) or wakeup in self._left]

    async def _count(self) -> None:
        now = time.monotonic()
        if now - self._counted_at < self._interval:
            return
        self._counted_at = now
        live = await self._store.workers.list(seen_within=self._lease)
        self._workers = sorted({self._scope.instance, *(one.id for one in live if self._is_peer(one))})

    def _is_peer(self, worker: WorkerRecord) -> bool:
        serves = not set(worker.queues).isdisjoint(self._scope.queues)
        return worker.lane == self._scope.lane and serves and worker.stopped_at is None

    def _is_mine(self, wakeup: Wakeup) -> bool:
        # The low bits of these ids are random, whatever time they begin with: the parts are of one size.
        return self._workers[uuid.UUID(wakeup.id).int % len(self._workers)] == self._scope.instance


class Cancels(Service):
    """Listens on the channel of this worker instance. Anybody may write there, so ids that do not run here are ignored.

    Requests that arrive while a statement is under way wait for the next one.
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


class Delivery(Service):
    """Checks the broker queues now and then while this worker is idle; messages that stay there meanwhile are proof.

    A check counts if the broker answers, messages wait, slots are free and no message came since the last check. A
    worker proven to receive nothing is ended: politely, then by force if Celery does not even react to that.
    """

    name = "delivery"
    failure = "The broker queues cannot be checked"

    def __init__(self, broker_url: str, queues: Sequence[str], claims: Claims, interval: float) -> None:
        super().__init__(interval)
        self._broker_url = broker_url
        self._queues = list(queues)
        self._claims = claims
        self._app: Any = None
        self._checked_at = time.monotonic()
        self._suspicious = 0

    async def step(self) -> float | None:
        if self._suspicious >= CHECKS:
            self._suspicious = 0  # a draining worker is not idle, and not to be asked twice
            if self._claims.is_idle():  # it does not even drain
                logger.critical("This worker does not stop; it is killed")
                os.kill(os.getpid(), signal.SIGKILL)
            return None
        waiting = await asyncio.to_thread(self._count) if self._hears_nothing() else 0
        self._suspicious = self._suspicious + 1 if waiting and self._hears_nothing() else 0
        self._checked_at = time.monotonic()
        if self._suspicious > 1:
            logger.warning("Messages wait at the broker but none arrives here", extra={"waiting": waiting})
        if self._suspicious < CHECKS:
            return None
        logger.critical(
            "Messages wait at the broker but none arrives here; this worker ends, so that another takes its place",
            extra={"queues": ",".join(self._queues), "checks": CHECKS, "seconds": CHECKS * (self.interval or 0.0)},
        )
        os.kill(os.getpid(), signal.SIGTERM)
        return FORCE_SECONDS

    def _hears_nothing(self) -> bool:
        return self._claims.is_idle() and self._claims.woken_at < self._checked_at

    def _count(self) -> int:
        """Return how many messages wait; 0 while the broker does not answer."""
        if self._app is None:
            self._app = celery_app(self._broker_url)
        try:
            return backlog(self._app, self._queues)
        except Exception as error:  # noqa: BLE001 every transport has its own errors; a failing one says nothing of us
            logger.debug("The broker queues cannot be read", extra={"error": str(error)})
            return 0
