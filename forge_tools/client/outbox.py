"""Calls on their way out: stored in as few statements as they fit, then rung for; never the other way round."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from forge_tools.bell import Listener
from forge_tools.client.waiting import ResultWaiter
from forge_tools.dispatch import Allowance, Bells, Dispatcher, Limits
from forge_tools.errors import ConfigurationError, ForgeError, StorageError, SubmitOutcomeUnknownError
from forge_tools.records import Lane, NewExecution, Ring, StoredResult
from forge_tools.records.places import serving_command
from forge_tools.storage import Store
from forge_tools.validation import clean_text

SERVED_INTERVAL = 5.0
PART = 500
"""Calls that are stored together at most: workers can begin with the first while the next are on their way."""

MOST_UNDER_WAY = 8 * PART
"""Calls of which it is not known yet whether they are stored; whoever has more waits."""

MAX_REASON_CHARS = 500

logger = logging.getLogger(__name__)

Insert = Callable[[Sequence[NewExecution]], Awaitable[list[ForgeError | None]]]


class Outbox:
    """Stores what its client accepted, and rings for what is stored.

    `refresh` reads who serves what, before it is said that nobody does.
    """

    def __init__(
        self,
        broker_url: str,
        waiter: ResultWaiter,
        listener: Listener,
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self.dispatcher = Dispatcher(broker_url)
        self._allowance = Allowance()
        self._waiter = waiter
        self._listener = listener
        self._refresh = refresh
        self._gathered: list[NewExecution] = []
        self._queued: deque[asyncio.Future[None]] = deque()
        self._is_due = False
        self._unsettled: set[str] = set()
        self._to_tell: dict[str, asyncio.Future[ForgeError | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._checked: set[tuple[str, str]] = set()
        self._checked_at = 0.0
        self._is_closing = False

    async def room(self) -> None:
        """Wait, first come first, while as many calls are on their way as the database should have before it.

        Workers begin with them while the rest is prepared, and the loop has time to hear what the database answers.
        """
        if len(self._gathered) >= PART or self._queued or len(self._unsettled) >= MOST_UNDER_WAY:
            self._queued.append(turn := asyncio.get_running_loop().create_future())
            await turn

    def put(self, store: Store, new: NewExecution) -> "asyncio.Future[StoredResult]":
        """Store a call with all that come in this turn of the loop. Its result, or the error that kept it out, is waited for
        from now on, since a worker may be faster than the answer that it is stored.

        Raises:
            ConfigurationError: the client is being closed; the call is not taken.
        """
        self._require_open()
        awaited = self._waiter.begin(new.id, self._listener.is_listening)
        self._gather(store, new)
        return awaited

    def put_and_tell(self, store: Store, new: NewExecution) -> "asyncio.Future[ForgeError | None]":
        """The same for a call whose result may be waited for later: the error that kept it out, or None."""
        self._require_open()
        stored: asyncio.Future[ForgeError | None] = asyncio.get_running_loop().create_future()
        self._to_tell[new.id] = stored
        self._gather(store, new)
        return stored

    def holds(self, execution_id: str) -> bool:
        """Whether it is not known yet if that call is stored."""
        return execution_id in self._unsettled

    async def commit(
        self, store: Store, accepted: Sequence[NewExecution], *, expecting: Sequence[str], insert: Insert | None = None
    ) -> list[ForgeError | None]:
        """Store calls, then ring for those that are stored; an error or None for each.

        The ids in `expecting` may be waited for later, so their rings are not to be missed. `insert` stores them in its own way.
        A defect in it is an error of each: nobody knows how far it came.
        """
        if self._listener.is_listening:
            self._waiter.expect(expecting)  # before the commit: a worker may be faster than this task
        try:
            errors = await (insert or store.queue.submit_many)(accepted)
        except (ForgeError, asyncio.CancelledError):
            self._waiter.forget(expecting)
            raise
        except Exception as error:  # whatever it is, those who wait for the calls have to hear of it
            logger.exception("Storing calls broke off", extra={"calls": len(accepted)})
            errors = _doubtful(accepted, error)
        self._waiter.forget([new.id for new, error in zip(accepted, errors, strict=True) if error is not None])
        try:
            self._ring([new for new, error in zip(accepted, errors, strict=True) if error is None])
        except Exception:  # what is stored is accepted, and workers find it in SQL
            logger.exception("Calls are stored, and nobody rings for them")
        return errors

    async def settle(self) -> None:
        """Take no more calls, and wait until those there are are stored or refused, within the bounds that storing has."""
        self._is_closing = True
        await asyncio.sleep(0)  # what was put in this turn of the loop is on its way in the next
        while self._tasks:
            await asyncio.wait(self._tasks)  # unlike `gather`, this cuts off nothing if it is cancelled

    async def close(self) -> None:
        """Settle, and send the rings that are on their way, within a bounded time."""
        await self.settle()
        await self.dispatcher.close()

    def _require_open(self) -> None:
        if self._is_closing:
            raise ConfigurationError("The client is being closed and takes no more calls; connect another one.")

    def _gather(self, store: Store, new: NewExecution) -> None:
        self._gathered.append(new)
        self._unsettled.add(new.id)
        self._send_soon(store)

    def _send_soon(self, store: Store) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send, store)

    def _send(self, store: Store) -> None:
        self._is_due = False
        gathered, self._gathered = self._gathered, []
        for start in range(0, len(gathered), PART):
            self._in_background(self._send_part(store, gathered[start : start + PART]))
        if len(self._unsettled) < MOST_UNDER_WAY:  # else what is under way comes back to this
            for _ in range(min(PART, len(self._queued))):
                turn = self._queued.popleft()
                if not turn.done():
                    turn.set_result(None)
            if self._queued:
                self._send_soon(store)

    async def _send_part(self, store: Store, part: Sequence[NewExecution]) -> None:
        """Whatever happens, each call of it is told what became of it: its caller would wait for ever."""
        errors: list[ForgeError | None]
        try:
            to_tell = [new.id for new in part if new.id in self._to_tell] if self._to_tell else []
            errors = await self.commit(store, part, expecting=to_tell)
        except ForgeError as refused:
            errors = [refused] * len(part)
        except asyncio.CancelledError as cut_off:
            self._settle(zip(part, _doubtful(part, cut_off), strict=True))
            raise
        except Exception as error:  # as above; storing has an answer of its own to that
            logger.exception("Calls cannot be stored")
            errors = [StorageError(f"The call was not stored: {_named(error)}. Call again.")] * len(part)
        finally:
            if self._queued:
                self._send_soon(store)
        self._settle(zip(part, errors, strict=True))

    def _settle(self, outcomes: Iterable[tuple[NewExecution, ForgeError | None]]) -> None:
        for new, error in outcomes:
            self._unsettled.discard(new.id)
            stored = self._to_tell.pop(new.id, None)
            if stored is None and error is not None:
                self._waiter.fail(new.id, error)
            elif stored is not None and not stored.done():
                stored.set_result(error)

    def _ring(self, stored: Sequence[NewExecution]) -> None:
        self._listener.start()
        groups: dict[tuple[str, Lane, float, float], list[NewExecution]] = {}
        for new in stored:
            if not new.delay:
                groups.setdefault((new.queue, new.lane, new.soft_time_limit, new.time_limit), []).append(new)
        for (queue, lane, soft, hard), group in groups.items():
            rings, limits = tuple(Ring(new.id, 0) for new in group), Limits(soft=int(soft), hard=int(hard))
            prompt = self._allowance.take(len(rings))
            for part, is_bulk in ((rings[:prompt], False), (rings[prompt:], True)):
                if part:
                    self.dispatcher.ring(Bells(queue, lane, part, limits, is_bulk))
        self._check_served({(new.queue, new.lane) for new in stored})

    def _check_served(self, places: set[tuple[str, str]]) -> None:
        """Warn of queues that nobody serves; look at each once an interval at most."""
        now = time.monotonic()
        if now - self._checked_at > SERVED_INTERVAL:
            self._checked, self._checked_at = set(), now
        unchecked = places - self._checked
        if unchecked:
            self._checked |= unchecked
            self._in_background(self._warn_of_unserved(unchecked))

    async def _warn_of_unserved(self, places: Iterable[tuple[str, str]]) -> None:
        try:
            await self._refresh()  # whoever asks now and then learns too that a tool has moved to another lane
        except ForgeError as error:
            logger.warning("It cannot be read who serves what", extra={"error": str(error)})
            return
        for queue, lane in sorted(set(places) - self.dispatcher.workers.keys()):
            logger.warning(
                "No live worker serves queue %s in lane %s; calls wait there until they expire. Start one: %s",
                *(queue, lane, serving_command(queue, lane)),
            )

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _doubtful(calls: Sequence[NewExecution], error: BaseException) -> list[ForgeError | None]:
    """What each of the calls is told when storing them broke off."""
    return [
        SubmitOutcomeUnknownError(
            f"Storing execution {new.id} broke off ({_named(error)}), so it may or may not be queued. Attach to the id to find out.",
            new.id,
        )
        for new in calls
    ]


def _named(error: BaseException) -> str:
    said = clean_text(str(error))
    return f"{type(error).__name__}: {said[:MAX_REASON_CHARS]}" if said else type(error).__name__
