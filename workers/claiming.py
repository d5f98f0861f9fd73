"""Messages and due rows become bodies: only what a free slot waits for, only while this worker's beats are acknowledged."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from forge_tools.broker import Broker, Message
from forge_tools.config import Settings
from forge_tools.errors import ForgeError
from forge_tools.records import DEFAULT_TIMEOUT, Claim, Scope, Wakeup
from forge_tools.storage import Store
from forge_tools.storage.looks import Look, Question, Reach
from workers.affinity import Affinity
from workers.changes import Changes
from workers.demotion import Demotion
from workers.fitness import Fitness
from workers.lanes.base import BodyLane
from workers.opening import Opening
from workers.outcomes import handed_back
from workers.recorder import Recorder
from workers.sharing import Sharing
from workers.withdrawal import Withdrawal

BEATS_BETWEEN_PULLS = 5
MOST_OVERDUE = 64
"""Due rows that go first between two pulls of a worker whose slots are never free."""

logger = logging.getLogger(__name__)


class Claiming:
    """Takes messages as they come, and looks in SQL for due rows that none came for; every method runs on the engine's loop.

    Nothing is claimed while this worker is not fit to.
    """

    def __init__(
        self,
        settings: Settings,
        scope: Scope,
        fitness: Fitness,
        *,
        recorder: Recorder,
        demotion: Demotion,
        changes: Changes,
        affinity: Affinity,
        withdrawal: Withdrawal,
    ) -> None:
        self.woken_at = 0.0
        """When a message came last, on the monotonic clock."""
        self.pulled_at = 0.0
        """When SQL was asked for due rows last."""
        self._settings = settings
        self._scope = scope
        self._fitness = fitness
        self._recorder = recorder
        self._demotion = demotion
        self._changes = changes
        self._affinity = affinity
        self._withdrawal = withdrawal
        self._overdue: list[Wakeup] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._taking: set[asyncio.Task[None]] = set()
        self._reserved = 0
        self._straying = 0
        self._under_way = 0
        self._is_closed = False

    def open(self, store: Store, broker: Broker, lane: BodyLane, opening: Opening) -> None:
        """Say where rows come from, where bodies go, and what opens calls on the way."""
        self._broker = broker
        self._opening = opening
        self._store = store
        self._lane = lane
        self._sharing = Sharing(store, self._scope, heartbeat=self._settings.heartbeat, lease=self._settings.lease)

    def host(self, tool_keys: tuple[str, ...]) -> None:
        """Claim calls of these tools from now on."""
        self._scope = replace(self._scope, tool_keys=tool_keys)

    async def close(self) -> None:
        """Claim no more; a claim under way is handed back."""
        self._is_closed = True
        await self._changes.announce()

    @property
    def is_quiet(self) -> bool:
        """Whether no claim is under way, neither here nor to another host."""
        return not self._under_way

    def is_idle(self) -> bool:
        """Whether it waits for messages alone: neither for the database nor for slots that only a flush announces."""
        return self._may_claim() and self.is_quiet and self._recorder.is_idle and self._free() > 0

    def has_room(self) -> bool:
        """Whether what came now would not have to wait; asked on the thread that receives."""
        return not self._taking and self._free() > 0

    def receive(self, wakeups: list[Wakeup], queue: str, *, is_bulk: bool, taken: Callable[[], None]) -> None:
        """Take a message, and say when that is done."""
        taking = asyncio.ensure_future(self.take(wakeups, queue, is_bulk=is_bulk))
        self._taking.add(taking)
        taking.add_done_callback(partial(self._received, taken))

    def _received(self, taken: Callable[[], None], taking: asyncio.Task[None]) -> None:
        self._taking.discard(taking)
        taken()
        if not taking.cancelled() and (error := taking.exception()) is not None:
            logger.error("A message was taken in vain; its calls are looked for in SQL", exc_info=error)

    async def take(self, wakeups: list[Wakeup], queue: str, *, is_bulk: bool = False) -> None:
        """Claim what a message that came by `queue` names, as much as there are slots once there is one; the rest is sent on."""
        self.woken_at = time.monotonic()
        await self._read_overdue()
        if (free := self._free()) <= 0:
            await self._changes.until(
                lambda: self._is_closed or self._free() > 0
            )  # last: nobody takes that slot meanwhile
            free = self._free()
        wakeups = self._overdue_first(wakeups)
        count = 0 if self._is_closed else min(free, len(wakeups))
        if wakeups[count:]:
            self._publish_elsewhere(wakeups[count:], queue, is_bulk=is_bulk)
        await self._start(wakeups[:count])

    async def claim_woken(self, wakeups: Sequence[Wakeup]) -> list[Claim]:
        """Claim for a lane that has its slots at hand."""
        self.woken_at = time.monotonic()
        await self._read_overdue()
        await self._changes.until(lambda: self._is_closed or not self._straying)
        waiting = self._overdue_first(wakeups)
        self._overdue += waiting[len(wakeups) :]  # what had to give way is next
        return await self._claim(waiting[: len(wakeups)])

    def question(self, sealed: Reach | None = None) -> Question:
        """What to ask at the next look: for due rows at once when no message came lately, now and then when busy.

        With `sealed`, also whether anything behind that waits for its seal.
        """
        asks_due = not self._is_closed and self._free() > 0 and self._is_time()
        return Question(
            self._claimable,
            asks_due=asks_due,
            banned=self._demotion.banned,
            sealed=sealed,
            answering=self._lane.answering(),
        )

    def hear(self, question: Question, look: Look) -> None:
        """Take the answer."""
        if question.asks_due:
            self.pulled_at = time.monotonic()
        if look.is_due:
            self._changes.is_due.set()

    async def pull_for_ever(self) -> None:
        """Take due rows whenever there are said to be some."""
        while True:
            await self._changes.is_due.wait()
            self._changes.is_due.clear()
            try:
                await self._pull()
            except ForgeError as error:
                logger.warning("Due calls cannot be read", extra={"error": str(error)})

    async def _start(self, wakeups: Sequence[Wakeup]) -> None:
        if not wakeups:
            return
        self._reserved += len(wakeups)
        claims: list[Claim] = []
        try:
            claims = await self._claim(wakeups)
            if claims:
                self._lane.run(claims)
        finally:
            self._reserved -= len(wakeups)
            if len(claims) < len(wakeups):  # slots are free again without a body having ended
                await self._changes.announce()

    async def _claim(self, wakeups: Sequence[Wakeup]) -> list[Claim]:
        """Claim those wakeups that are still to be had; none while closed or while our beats go unacknowledged."""
        if not self._may_claim():
            return []
        self._under_way += 1
        try:
            claims = await self._store.queue.claim(wakeups, self._claimable)
            self._recorder.claimed(claims)
            if not self._is_closed and self._fitness.may_run():
                return self._opened(self._kept_here(claims))
            self._hand_back(claims)
            return []
        finally:
            self._under_way -= 1
            if self._is_closed:
                await self._changes.announce()

    def _opened(self, claims: list[Claim]) -> list[Claim]:
        """What may run; the others end here, because this worker cannot open what they hide."""
        opened, refused = self._opening.open(claims)
        for outcome in refused:
            self._recorder.add(outcome)
        return opened

    def _kept_here(self, claims: list[Claim]) -> list[Claim]:
        """Send on what belongs on other hosts; return the rest, which does not wait for that.

        What is sent holds its slots meanwhile: claims are faster, and the death of this worker would lose all that it owns.
        """
        strays = self._affinity.strays(claims)
        if not strays:
            return claims
        self._under_way += len(strays)
        self._straying += len(strays)
        for claim, name in strays:
            sending = asyncio.create_task(self._send_home(claim, name))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        away = {claim.token for claim, _ in strays}
        return [claim for claim in claims if claim.token not in away]

    async def _send_home(self, claim: Claim, name: str) -> None:
        is_settled = False
        try:
            queue = await self._affinity.send_home(self._store, claim, name)
            is_settled = True
            if queue is not None:
                self._publish_elsewhere([Wakeup(claim.id, claim.attempt - 1)], queue)
        except ForgeError as error:
            logger.warning("A call of another host cannot be sent there", extra={"error": str(error)})
        finally:
            if not is_settled:
                self._hand_back([claim])
            self._under_way -= 1
            self._straying -= 1
        await self._changes.announce()

    def _hand_back(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._recorder.add(handed_back(claim))

    async def _read_overdue(self) -> None:
        """Read now and then what no message came for: where no slot stays free, no look would ask for it."""
        now = time.monotonic()
        if now - self.pulled_at < BEATS_BETWEEN_PULLS * self._settings.heartbeat or not self._may_claim():
            return
        self.pulled_at = now
        try:
            self._overdue = await self._store.queue.due(self._claimable, MOST_OVERDUE)
        except ForgeError as error:
            logger.warning("Due calls cannot be read", extra={"error": str(error)})

    def _overdue_first(self, wakeups: Sequence[Wakeup]) -> list[Wakeup]:
        """As many overdue calls as were named, and then those that were."""
        first, self._overdue = self._overdue[: len(wakeups)], self._overdue[len(wakeups) :]
        return list(dict.fromkeys([*first, *wakeups]))

    def _publish_elsewhere(self, wakeups: Sequence[Wakeup], queue: str, *, is_bulk: bool = False) -> None:
        limits = self._settings.ladder.limits(DEFAULT_TIMEOUT)
        for part in Message(queue, self._scope.lane, tuple(wakeups), limits, is_bulk).parts():
            self._broker.publish(part)

    async def _pull(self) -> None:
        """Take due rows while there may be more than there was room for. Messages may be lost, rows are not."""
        is_full = True
        while is_full and self._free() > 0 and not self._is_closed:
            self.pulled_at = time.monotonic()
            due, is_full = await self._sharing.due(self._claimable, self._free)
            await self._start(due)
            if is_full:  # go on as soon as a slot is free, unless messages have come
                await self._changes.until(lambda: self._is_closed or self._free() > 0)
                is_full = self._is_time()

    def _is_time(self) -> bool:
        now, beat = time.monotonic(), self._settings.heartbeat
        return now - self.woken_at >= beat or now - self.pulled_at >= BEATS_BETWEEN_PULLS * beat

    @property
    def _claimable(self) -> Scope:
        return self._withdrawal.within(self._demotion.within(self._scope))

    def _free(self) -> int:
        if self._fitness.is_unfit:
            return 0
        return self._lane.free_slots() - self._reserved - self._straying

    def _may_claim(self) -> bool:
        return not self._is_closed and self._fitness.may_claim()
