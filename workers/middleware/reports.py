"""Reports on a worker: gathered from bodies of either lane, and written together a few times a second."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from forge_tools.errors import ForgeError
from forge_tools.model.execution import Claim, Outcome
from forge_tools.model.scope import NewReport, Told
from forge_tools.sandbox.reports import ReportBuffer
from forge_tools.storage import Store
from workers.middleware.base import Middleware

WRITE_SECONDS = 0.25
"""The pause between two writes. The first report after a silence is written at once."""

WRITE_BYTES = 256_000
"""The most output in one write; the buffers of those that wait keep their limits."""

SETTLE_SECONDS = 5.0
"""How long the end of a call waits for its reports to be written: it matters more than they do."""

logger = logging.getLogger(__name__)


class Reports(Middleware):
    """Belongs to the engine's loop. A body that reports nothing costs an object, and a check of it at its end.

    What is reported before the end of an attempt is written before that end: whoever reads an end can read all reports.
    """

    def __init__(self, store: Store, *, every: float = WRITE_SECONDS) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._every = every
        self._begun: dict[str, tuple[Claim, ReportBuffer]] = {}
        self._waiting: dict[str, None] = {}
        self._unwritten: list[NewReport] = []
        self._under_way: frozenset[str] = frozenset()
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()

    def begin(self, claim: Claim) -> ReportBuffer:
        """Create the buffer of an attempt, for its duration."""
        buffer = ReportBuffer(partial(self._hear, claim.token), interval=self._every)
        self._begun[claim.token] = claim, buffer
        return buffer

    async def run(self) -> None:
        """Write reports for ever; all that come during a write go into the next transaction."""
        while True:
            await self._news.wait()
            self._news.clear()
            async with self._writing:
                # In an outage the rest stays in the buffers of its calls, which are bounded.
                await self._write([] if self._unwritten else self._gathered())
            if self._waiting or self._unwritten:
                self._news.set()
            await asyncio.sleep(self._every)

    async def storing(self, outcomes: Sequence[Outcome]) -> None:
        """Write the remaining reports of those attempts, which report nothing more."""
        left: list[NewReport] = []
        for outcome in outcomes:
            if (begun := self._begun.pop(outcome.token, None)) is not None:
                claim, buffer = begun
                self._waiting.pop(outcome.token, None)
                left += _rows(claim, buffer.close())
        if not (left or self._unwritten or any(outcome.token in self._under_way for outcome in outcomes)):
            return
        try:
            async with asyncio.timeout(SETTLE_SECONDS), self._writing:
                await self._write(left)
        except TimeoutError:
            logger.warning("Calls end without their last reports", extra={"count": len(left)})

    def _hear(self, token: str) -> None:
        """Note that there is something to take; callable on any thread."""
        with suppress(RuntimeError):  # the loop has ended: nobody will take it
            self._loop.call_soon_threadsafe(self._note, token)

    def _note(self, token: str) -> None:
        if token in self._begun:
            self._waiting[token] = None
            self._news.set()

    def _gathered(self) -> list[NewReport]:
        """Take from one after the other, within the limit; those that had to wait come first next time."""
        rows: list[NewReport] = []
        room = WRITE_BYTES
        for token in list(self._waiting):
            if room <= 0:
                break
            del self._waiting[token]
            claim, buffer = self._begun[token]
            told = buffer.take()
            room -= sum(len(one.text or "") for one in told)
            rows += _rows(claim, told)
            if buffer.is_waiting:
                self._waiting[token] = None
        return rows

    async def _write(self, rows: Sequence[NewReport]) -> None:
        """Write, and keep for the next time what an unreachable database could not take."""
        rows = [*self._unwritten, *rows]
        self._under_way = frozenset(row.token for row in rows)
        try:
            await self._store.reports.add(rows)
        except ForgeError as error:
            self._unwritten = rows if error.retryable else []
            logger.warning("Reports of calls cannot be stored", extra={"count": len(rows), "error": str(error)})
        else:
            self._unwritten = []
        finally:
            self._under_way = frozenset()


def _rows(claim: Claim, told: Iterable[Told]) -> list[NewReport]:
    return [NewReport(claim.id, claim.attempt, claim.token, one) for one in told]
