"""The way of calls through a worker: messages become bodies when a slot is free, and outcomes are committed or kept."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from forge_tools.errors import ForgeError
from forge_tools.model.execution import Claim, Outcome, Scope, Wakeup
from forge_tools.storage import Store
from workers.lanes.base import BodyLane
from workers.middleware.base import Activity, Middleware, SendOn, Stored, hooks
from workers.outcomes import handed_back

DUE_UNREAD = "Due calls cannot be read"
BEATS_BETWEEN_PULLS = 5
MOST_OVERDUE = 64
"""How many due rows go first between two pulls of a worker whose slots are never free."""

Pending = tuple[Outcome, Claim | None]
"""An outcome and the claim that it ends, if this worker made that claim."""

logger = logging.getLogger(__name__)


class Fit(Protocol):
    """Whether this worker may claim, and run what it has claimed."""

    lacks: str | None
    """Why it may not, as of the last check."""

    def may_claim(self) -> bool: ...

    def may_run(self) -> bool: ...


class Recorder:
    """Outcomes gather while one flush is under way; each goes through the middleware before and after."""

    def __init__(
        self, store: Store, activity: Activity, middleware: Sequence[Middleware], *, retry_seconds: float
    ) -> None:
        self._store = store
        self._activity = activity
        self._ended = hooks(middleware, "ended")
        self._storing = hooks(middleware, "storing")
        self._stored = hooks(middleware, "stored")
        self._retry_seconds = retry_seconds
        self._claims: dict[str, Claim] = {}
        self._pending: list[Pending] = []
        self._flushing: list[Pending] = []
        self._work = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether every outcome it was given is stored."""
        return not self._pending and not self._flushing

    def claimed(self, claims: Iterable[Claim]) -> None:
        """Remember claims whose outcomes will come, each in an `add`."""
        self._claims.update((claim.token, claim) for claim in claims)

    def forget(self, claim: Claim) -> None:
        """Forget a claim that is no longer this worker's: there will be no outcome."""
        self._claims.pop(claim.token, None)

    def add(self, outcome: Outcome) -> None:
        """Take an outcome, which is stored soon."""
        claim = self._claims.pop(outcome.token, None)
        if claim is not None:
            for hook in self._ended:
                try:
                    outcome = hook(claim, outcome)
                except Exception:  # a child can send anything; a call whose outcome is lost would run for ever
                    logger.exception("A middleware failed; the outcome is stored as it is", extra=claim.facts())
        self._pending.append((outcome, claim))
        self._work.set()

    async def run(self) -> None:
        """Record for ever. Not a service: nothing else is as hot, and on a failure it keeps what it could not store."""
        while True:
            await self._work.wait()
            self._work.clear()
            self._flushing, self._pending = self._pending, []
            outcomes = [outcome for outcome, _ in self._flushing]
            for hook in self._storing:
                await hook(outcomes)
            try:
                kept = await self._store.queue.finish_many(outcomes)
            except ForgeError as error:
                self._keep(error)
            else:
                flushed, self._flushing = self._flushing, []
                # Late ones are left out: their attempts are no longer this worker's to report.
                stored = [Stored(*one, how) for one, how in zip(flushed, kept, strict=True) if how]
                for hook in self._stored:
                    hook(stored)
                for seconds in {one.outcome.retry_in for one in stored if one.outcome.retry_in is not None}:
                    self._activity.due_in(seconds)
            self._activity.announce()

    def give_up(self) -> None:
        """Log which calls ended here without a trace, as this worker ends: the others see only that it died."""
        if left := [outcome.id for outcome, _ in (*self._flushing, *self._pending)]:
            what = "Outcomes could not be stored before this worker ends; others settle these calls as lost, or run them again"
            logger.error(what, extra={"count": len(left), "executions": left})

    def _keep(self, error: ForgeError) -> None:
        logger.error(
            "Outcomes cannot be stored; they are kept for a retry",
            extra={"count": len(self._flushing), "error": str(error)},
        )
        self._pending, self._flushing = [*self._flushing, *self._pending], []
        asyncio.get_running_loop().call_later(self._retry_seconds, self._work.set)


class Claims:
    """Takes messages as they arrive; every method except `hand_over` and `close` runs on the engine's loop.

    Nothing is claimed while this worker is not fit.
    """

    def __init__(  # noqa: PLR0913  each is a separate part
        self,
        store: Store,
        lane: BodyLane,
        scope: Callable[[], Scope],
        fitness: Fit,
        recorder: Recorder,
        *,
        activity: Activity,
        middleware: Sequence[Middleware],
        send_on: SendOn,
        heartbeat: float,
        keeps_rest: bool,
    ) -> None:
        """`scope` is what this worker claims now.

        `keeps_rest`: ids of a message that find no slot wait here for the next one, instead of at the broker.
        """
        self.woken_at = 0.0
        """When the last message came, on the monotonic clock."""
        self.pulled_at = 0.0
        """When SQL was last asked for due rows."""
        self.is_closed = False
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._lane = lane
        self._scope = scope
        self._fitness = fitness
        self._recorder = recorder
        self._activity = activity
        self._claimed = hooks(middleware, "claimed")
        self._send_on = send_on
        self._heartbeat = heartbeat
        self._keeps_rest = keeps_rest
        self._overdue: list[Wakeup] = []
        self._taking: set[asyncio.Task[None]] = set()

    @property
    def scope(self) -> Scope:
        """What it claims now."""
        return self._scope()

    def close(self) -> None:
        """Claim no more; a claim under way is handed back, and what comes now is sent on. Callable from any thread."""
        self.is_closed = True
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._activity.announce)

    def free_slots(self) -> int:
        """Return how many more calls it could take; 0 when it takes no more."""
        if self._fitness.lacks is not None or self.is_closed:
            return 0
        return self._lane.free_slots() - self._activity.claiming - self._activity.sending

    def may_claim(self) -> bool:
        """Return whether it may claim now, if there are slots."""
        return not self.is_closed and self._fitness.may_claim()

    def is_idle(self) -> bool:
        """Return whether it waits only for messages, not for the database nor for slots that only a flush announces."""
        return self.may_claim() and self._activity.is_quiet and self._recorder.is_idle and self.free_slots() > 0

    def is_time_to_pull(self) -> bool:
        """Return whether to ask SQL for due rows: no message came for a heartbeat, or nobody has asked for several."""
        now, beat = time.monotonic(), self._heartbeat
        return now - self.woken_at >= beat or now - self.pulled_at >= BEATS_BETWEEN_PULLS * beat

    def has_pulled(self) -> None:
        """Record that SQL is asked for due rows now."""
        self.pulled_at = time.monotonic()

    def hand_over(self, wakeups: list[Wakeup], queue: str, *, is_bulk: bool, taken: Callable[[], None]) -> None:
        """Claim the calls named by a message from `queue`; returns at once. Called on the receiving thread.

        `taken` is called when the broker may send the next one: a slot is free besides those for this one.
        """
        # Read from another thread, so it may be outdated: then one message more waits here, or at the broker.
        if is_roomy := not self._taking and self.free_slots() > len(wakeups):
            taken()
        work = partial(self._receive, wakeups, queue, is_bulk=is_bulk, taken=None if is_roomy else taken)
        with suppress(RuntimeError):  # the loop has ended; SQL keeps the rows
            self._loop.call_soon_threadsafe(work)

    def _receive(self, wakeups: list[Wakeup], queue: str, *, is_bulk: bool, taken: Callable[[], None] | None) -> None:
        take = partial(self.take, wakeups, queue, is_bulk=is_bulk)
        taking = asyncio.ensure_future(take() if taken is None else self._told(take, taken))
        self._taking.add(taking)
        taking.add_done_callback(self._received)

    async def _told(self, take: Callable[[], Coroutine[Any, Any, None]], taken: Callable[[], None]) -> None:
        try:
            await take()
            await self._until_free()
        finally:
            taken()

    def _received(self, taking: asyncio.Task[None]) -> None:
        self._taking.discard(taking)
        if not taking.cancelled() and (error := taking.exception()) is not None:
            logger.error("A message led to no call; due calls are looked for in SQL", exc_info=error)

    async def take(self, wakeups: list[Wakeup], queue: str, *, is_bulk: bool = False) -> None:
        """Claim a message's calls, as many as there are slots once one is free; keep the rest, or send it on to `queue`."""
        self.woken_at = time.monotonic()
        while wakeups:
            await self._read_overdue()
            if (free := self.free_slots()) <= 0:
                await self._until_free()  # the last wait: nobody takes that slot meanwhile
                free = self.free_slots()
            count = max(0, min(free, len(wakeups)))
            overdue, self._overdue = self._overdue[:count], self._overdue[count:]
            wakeups = list(dict.fromkeys([*overdue, *wakeups]))
            now, wakeups = wakeups[:count], wakeups[count:]  # so no overdue one is sent on: its queue may be another
            if wakeups and (self.is_closed or not self._keeps_rest):
                self._send_on(wakeups, queue, is_bulk=is_bulk)
                wakeups = []
            await self.start(now)

    async def _until_free(self) -> None:
        await self._activity.until(lambda: self.is_closed or self.free_slots() > 0)

    async def start(self, wakeups: Sequence[Wakeup]) -> None:
        """Claim those that are still available, and run them; none while closed or while our heartbeats go unanswered."""
        if not wakeups or not self.may_claim():
            return
        self._activity.claiming += len(wakeups)
        claims: list[Claim] = []
        try:
            claims = self._let_through(await self._store.queue.claim(wakeups, self._scope()))
            if claims:
                self._lane.run(claims)
        finally:
            self._activity.claiming -= len(wakeups)
            if self.is_closed or len(claims) < len(wakeups):  # slots are free again although no body ended
                self._activity.announce()

    def _let_through(self, claims: list[Claim]) -> list[Claim]:
        """Return the claims that run here; the others are handed back, or are the middleware's."""
        claimed = {claim.id for claim in claims}
        self._overdue = [one for one in self._overdue if one.id not in claimed]
        self._recorder.claimed(claims)
        if self.is_closed or not self._fitness.may_run():
            for claim in claims:
                self._recorder.add(handed_back(claim))
            return []
        for hook in self._claimed:
            claims = hook(claims, self._recorder)
        return claims

    async def _read_overdue(self) -> None:
        """Read now and then what no message came for: if slots are never free, no heartbeat asks for it."""
        if time.monotonic() - self.pulled_at < BEATS_BETWEEN_PULLS * self._heartbeat or not self.may_claim():
            return
        self.has_pulled()
        try:
            self._overdue = await self._store.queue.due(self._scope(), MOST_OVERDUE)
        except ForgeError as error:
            logger.warning(DUE_UNREAD, extra={"error": str(error)})
