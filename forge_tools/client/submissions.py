"""Calls on their way out: stored in as few statements as possible, then published; warnings if nobody could answer."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence

from forge_tools.broker.celery_app import open_broker
from forge_tools.broker.message import Allowance, Message
from forge_tools.client.catalogue import SERVED_INTERVAL, Catalogue, Place
from forge_tools.client.connection import Connection
from forge_tools.client.results import Results
from forge_tools.errors import ConfigurationError, ForgeError, SubmitOutcomeUnknownError
from forge_tools.model.calls import ToolResult
from forge_tools.model.execution import NewExecution, Wakeup
from forge_tools.model.tools import Lane
from forge_tools.schema import clean_text
from forge_tools.storage.directory import ANY_TOOL
from forge_tools.storage.rows import Answer
from forge_tools.time_limits import CeleryLimits

CHECK_SECONDS = 1.0
"""How long after a call to check whether its queue is still served."""

PART = 500
"""The most calls stored together: workers can begin with the first while the next are on their way."""

MOST_UNDER_WAY = 8 * PART
"""The most calls that may be neither stored nor refused; callers with more wait."""

POLL_SECONDS = 0.01
"""Seconds between two checks, by a closing client, of the call that its caller is storing."""

CLOSING = "The client is being closed and accepts no more calls; connect a new one."

MAX_REASON_CHARS = 500

logger = logging.getLogger(__name__)


class Submissions:
    """Stores what its client accepted, and publishes what is stored; `results` are those of the stored calls."""

    def __init__(self, broker_url: str, connection: Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self.results = Results(connection)
        self._broker = open_broker(broker_url)
        self._allowance = Allowance()
        self._gathered: list[NewExecution] = []
        self._queued: deque[asyncio.Future[None]] = deque()
        self._is_due = False
        self._unsettled: set[str] = set()
        self._to_tell: dict[str, asyncio.Future[Answer]] = {}
        self._checked: dict[Place, float] = {}
        self._check: asyncio.TimerHandle | None = None
        self.is_closing = False
        """Whether it takes no more calls."""

    async def room(self) -> None:
        """Wait in line while as many calls are under way as the database should be given at once.

        Workers begin with them while the rest is prepared, and the loop has time to read the database's answers.
        """
        if len(self._gathered) >= PART or self._queued or len(self._unsettled) >= MOST_UNDER_WAY:
            self._queued.append(turn := asyncio.get_running_loop().create_future())
            await turn

    async def run(self, new: NewExecution) -> ToolResult:
        """Store a call and wait for its result, or for the error that kept it out.

        The wait begins first, since a worker may finish before the answer that the call is stored. A call that comes
        alone is stored at once, others with all that come in this turn of the loop.
        """
        is_alone = not self._unsettled
        future = self.results.begin(new.id, self._broker.is_listening)
        self._unsettled.add(new.id)
        try:
            if is_alone:
                await self._send_part([new])
            else:
                self._gather(new)
            return await future
        finally:
            self.results.end(new.id, future)

    def put_and_tell(self, new: NewExecution) -> "asyncio.Future[Answer]":
        """Store a call whose result may be awaited later; the future returns the outcome of storing it.

        Raises:
            ConfigurationError: the client is closing; the call is not taken.
        """
        if self.is_closing:
            raise ConfigurationError(CLOSING)
        self._unsettled.add(new.id)
        self._gather(new)
        stored: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._to_tell[new.id] = stored
        return stored

    async def settle(self) -> None:
        """Take no more calls, and wait until all are stored or refused, within the time limits of storing."""
        self.is_closing = True
        if self._check is not None:
            self._check.cancel()
        await asyncio.sleep(0)  # calls of this turn of the loop are sent in the next
        await self._connection.until_done()
        while self._unsettled:
            await asyncio.sleep(POLL_SECONDS)
            await self._connection.until_done()

    async def close(self) -> None:
        """Settle, end every wait, and send the messages that are under way, within a bounded time."""
        await self.settle()
        await self.results.close()
        await self._broker.close()

    def _gather(self, new: NewExecution) -> None:
        self._gathered.append(new)
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_due = False
        gathered, self._gathered = self._gathered, []
        if gathered:  # separately: calls that wait for the holder of their key delay no others
            linked = [new for new in gathered if new.is_linked]
            for rows in ([new for new in gathered if not new.is_linked] if linked else gathered, linked):
                for start in range(0, len(rows), PART):
                    self._connection.begin(self._send_part(rows[start : start + PART]))
        if len(self._unsettled) < MOST_UNDER_WAY:  # otherwise it is called again when those under way end
            for _ in range(min(PART, len(self._queued))):
                turn = self._queued.popleft()
                if not turn.done():
                    turn.set_result(None)
            if self._queued:
                self._send_soon()

    async def _send_part(self, part: Sequence[NewExecution]) -> None:
        """Store calls, then publish those stored. Each always gets an outcome, or its caller would wait for ever."""
        later = [row.id for row in part if row.id in self._to_tell] if self._to_tell else []
        if later and self._broker.is_listening:
            self.results.expect(later)  # before the commit: a worker may be faster than this task
        answers: Sequence[Answer]
        try:
            answers = await self._connection.store.queue.submit_many(part)
        except ForgeError as refused:
            answers = [refused] * len(part)
        except asyncio.CancelledError as cut_off:
            self._settle(part, _doubtful(part, cut_off))
            raise
        except Exception as error:  # a defect: how far it came is unknown, and the callers must be told
            logger.exception("Storing calls was interrupted", extra={"calls": len(part)})
            answers = _doubtful(part, error)
        finally:
            if self._queued:
                self._send_soon()
        self._settle(part, answers)

    def _settle(self, part: Sequence[NewExecution], answers: Sequence[Answer]) -> None:
        outcomes = list(zip(part, answers, strict=True))
        if refused := [row.id for row, answer in outcomes if answer is not None]:
            self.results.forget(refused)
        try:
            self._publish([new for new, answer in outcomes if answer is None])
        except Exception:  # what is stored is accepted, and workers find it in SQL
            logger.exception("Calls are stored, but not published")
        for row, answer in outcomes:
            self._unsettled.discard(row.id)
            told = self._to_tell.pop(row.id, None)
            if told is None and isinstance(answer, ForgeError):
                self.results.fail(row.id, answer)
            elif told is not None and not told.done():
                told.set_result(answer)

    def _publish(self, stored: Sequence[NewExecution]) -> None:
        if not stored:
            return
        if not self._broker.is_listening:  # from the first call on: a client that only reads needs no broker
            self._broker.listen(self._connection.submitter, self.results.hear, self.results.missed)
        groups: dict[tuple[str, Lane], list[NewExecution]] = {}
        for new in stored:
            if not new.delay:  # workers find delayed calls in SQL when they are due
                groups.setdefault((new.queue, new.lane), []).append(new)
        for (queue, lane), group in groups.items():
            longest = max(group, key=lambda new: new.time_limit)
            limits = CeleryLimits(soft=int(longest.soft_time_limit), hard=int(longest.time_limit))
            wakeups = tuple(Wakeup(new.id, 0) for new in group)
            prompt = self._allowance.take(len(wakeups))
            for part, is_bulk in ((wakeups[:prompt], False), (wakeups[prompt:], True)):
                if not part:
                    continue
                for message in Message(queue, lane, part, limits, is_bulk).parts(self._catalogue.snapshot.workers):
                    self._broker.publish(message)
        self._check_served({(new.queue, new.lane, key) for new in stored for key in (ANY_TOOL, new.tool_key)})

    def _check_served(self, places: set[Place]) -> None:
        """Warn of calls that nobody could answer: of new places at once, of others now and then, but not during this call."""
        loop = asyncio.get_running_loop()
        if new := places - self._checked.keys():
            self._connection.begin(self._warn_of_unanswered(new))
        elif self._check is None and any(self._checked[place] < loop.time() - SERVED_INTERVAL for place in places):
            self._check = loop.call_later(CHECK_SECONDS, self._check_again, frozenset(places))
        self._checked.update(dict.fromkeys(new, loop.time()))

    def _check_again(self, places: frozenset[Place]) -> None:
        self._check = None
        self._checked.update(dict.fromkeys(places, asyncio.get_running_loop().time()))
        self._connection.begin(self._warn_of_unanswered(places))

    async def _warn_of_unanswered(self, places: Iterable[Place]) -> None:
        known = self._catalogue.snapshot
        patience = 0.0 if any(known.unanswered(places)) else SERVED_INTERVAL  # warn only of what a new read says, too
        try:
            await self._catalogue.refresh_since(time.monotonic() - patience)  # also shows a tool that changed its lane
        except ForgeError as error:
            logger.warning("It is not known which workers serve which queues", extra={"error": str(error)})
            return
        for sentence in self._catalogue.snapshot.unanswered(places):
            logger.warning(sentence)


def _doubtful(calls: Sequence[NewExecution], error: BaseException) -> list[ForgeError]:
    said = clean_text(str(error))[:MAX_REASON_CHARS]
    reason = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return [
        SubmitOutcomeUnknownError(
            f"Storing execution {new.id} was interrupted ({reason}), so it may or may not be queued. Attach to the id to find out.",
            new.id,
        )
        for new in calls
    ]
