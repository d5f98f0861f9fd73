"""Natural batching: rows that arrive during a flush go together in the next one. No SQL, no timers."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from forge_tools.deadlines import answered_within
from forge_tools.errors import DatabaseUnavailableError, ForgeError, StorageError
from forge_tools.storage.connection.drivers import SENT, closed
from forge_tools.storage.connection.faults import ConflictError, RefusedError, UnreachableError

Row = TypeVar("Row")
Result = TypeVar("Result")

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
LEAST_CONFLICT_TRIES = 5
"""Even without patience: a conflict is over as soon as the other transaction is."""

LAST_PATIENCE = 3.0
"""How many seconds a flush may still take once its Store is closing."""


@dataclass(slots=True, eq=False)
class _Call(Generic[Result]):
    """A caller and the rows it waits for."""

    future: "asyncio.Future[list[Result | ForgeError]]"
    results: list[Result | ForgeError]
    missing: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What one flush may hold, and for how many seconds it is retried (`patience`); None: for ever.

    After `deadline` seconds the current try is cancelled as well; None: never.
    """

    rows: int = 1000
    size: int = 8_000_000
    patience: float | None = 3.0
    deadline: float | None = None


@dataclass(slots=True, eq=False)
class Batcher(Generic[Row, Result]):
    """Gathers rows and passes them to `flush`, one flush at a time.

    `flush` returns one result per row, in order, and must be idempotent: it is repeated whole after a `ConflictError`
    or an `UnreachableError`. If it raises `RefusedError`, the rows are halved until the refused one is alone. `give_up`
    converts a row and its final error into the error that the row's caller gets.
    """

    flush: Callable[[Sequence[Row]], Awaitable[Sequence[Result | ForgeError]]]
    limits: Limits = Limits()
    size: Callable[[Row], int] = lambda _: 0
    give_up: Callable[[Row, ForgeError], ForgeError] = lambda _, error: error
    _pending: deque[tuple[Row, _Call[Result], int]] = field(default_factory=deque)
    _flusher: "asyncio.Future[None] | None" = None
    _closed: bool = False

    async def add(self, row: Row) -> Result:
        """Wait until `row` is flushed; raise its error if it has one."""
        [outcome] = await self.put([row])
        if isinstance(outcome, ForgeError):
            raise outcome
        return outcome

    async def add_many(self, rows: Sequence[Row]) -> list[Result | ForgeError]:
        """Wait until all `rows` are flushed; returns outcomes in order.

        If no flush is under way, this task flushes them itself, which saves single rows, the usual case, a task and a
        future; so cancelling the caller cancels the flush.
        """
        if self._flusher is not None or self._closed or not (len(rows) == 1 or self._fits(rows)):
            return await self.put(rows)
        loop = asyncio.get_running_loop()
        done = self._flusher = loop.create_future()
        try:
            return await self._settle(rows)
        finally:
            self._flusher = loop.create_task(self._run()) if self._pending else None
            done.set_result(None)

    def put(self, rows: Sequence[Row]) -> "asyncio.Future[list[Result | ForgeError]]":
        """Queue `rows` under one future. Cancelling a waiter does not stop the flush."""
        if self._closed:
            raise closed()
        call: _Call[Result] = _Call(asyncio.get_running_loop().create_future(), [], len(rows))
        if not rows:
            call.future.set_result([])
            return call.future
        call.results = [_UNANSWERED] * len(rows)
        self._pending.extend((row, call, index) for index, row in enumerate(rows))
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._run())
        return call.future

    async def settle(self) -> None:
        """Wait until all queued rows have been written or given up."""
        while self._flusher is not None:
            await asyncio.wait([self._flusher])

    async def close(self) -> None:
        """Accept no more rows, and settle those that are queued."""
        self._closed = True
        await self.settle()

    def _fits(self, rows: Sequence[Row]) -> bool:
        """Return whether several rows fit one flush; a single row always does, however large."""
        return 0 < len(rows) <= self.limits.rows and sum(map(self.size, rows)) <= self.limits.size

    async def _run(self) -> None:
        try:
            while self._pending:
                entries = self._take()
                try:
                    outcomes = await self._settle([row for row, _, _ in entries])
                except asyncio.CancelledError:
                    cut_off = StorageError("The Store was closed while these rows were being written.")
                    _answer(entries, [cut_off] * len(entries))
                    raise
                _answer(entries, outcomes)
        finally:
            self._flusher = None
            # None are left unless this was cancelled.
            self._answer_rest(StorageError("The Store was closed before these rows were written."))

    def _take(self) -> list[tuple[Row, _Call[Result], int]]:
        """Take the next rows within the limits; a row larger than the limit goes alone."""
        entries: list[tuple[Row, _Call[Result], int]] = []
        room = self.limits.size
        while self._pending and len(entries) < self.limits.rows:
            room -= self.size(self._pending[0][0])
            if room < 0 and entries:
                break
            entries.append(self._pending.popleft())
        return entries

    async def _settle(self, rows: Sequence[Row]) -> list[Result | ForgeError]:
        """Flush `rows`, halving them while the database refuses a value among them.

        Each part has its own outcome: what was written before the database became unreachable stays written.
        """
        outcomes: list[Result | ForgeError] = []
        parts = [rows]
        while parts:
            part = parts.pop()
            try:
                outcomes += await self._persist(part)
            except UnreachableError as error:
                outcomes += [self.give_up(row, error) for row in part]
                # These were never sent, so they are certainly not written.
                unsent = DatabaseUnavailableError(error.message)
                outcomes += [self.give_up(row, unsent) for rest in reversed(parts) for row in rest]
                self._answer_rest(unsent)
                break
            except ForgeError as error:
                if isinstance(error, RefusedError) and len(part) > 1:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]  # the first half is popped first: outcomes stay in order
                else:
                    outcomes += [self.give_up(row, error) for row in part]
            except Exception as error:  # noqa: BLE001 a defect in a flush must reach its waiters, or they wait for ever
                why = f"The database driver failed: {type(error).__name__}: {error}"
                broken = UnreachableError(why, maybe_committed=True)
                broken.__cause__ = error
                outcomes += [self.give_up(row, broken) for row in part]
        return outcomes

    async def _persist(self, rows: Sequence[Row]) -> Sequence[Result | ForgeError]:
        """Repeat one flush until it takes effect, or patience or the deadline ends."""
        began, deadline, why, doubt, pause = time.monotonic(), self.limits.deadline, "", False, FIRST_PAUSE
        tries = 0
        try:
            async with nullcontext() if deadline is None else answered_within(deadline):
                while True:
                    tries += 1
                    try:
                        return await self.flush(rows)
                    except (ConflictError, UnreachableError) as error:
                        why = error.message
                        # A later try that certainly wrote nothing does not take back what an earlier one may have.
                        doubt = doubt or (isinstance(error, UnreachableError) and error.maybe_committed)
                        if self._is_last(error, tries, began, pause):
                            raise UnreachableError(why, maybe_committed=doubt) from error
                    await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 spreads retries, guards nothing
                    pause = min(pause * 2, LONGEST_PAUSE)
        except TimeoutError as cut_off:
            why = why or f"The database did not answer within {deadline:g} s."
            was_sent = isinstance(cut_off.__cause__, asyncio.CancelledError) and cut_off.__cause__.args == (SENT,)
            raise UnreachableError(why, maybe_committed=doubt or was_sent) from cut_off

    def _is_last(self, error: ConflictError | UnreachableError, tries: int, began: float, pause: float) -> bool:
        if isinstance(error, UnreachableError):  # the pause before the next try counts, too
            return error.is_final or self._is_out_of_patience(began - pause)
        return tries >= LEAST_CONFLICT_TRIES and self._is_out_of_patience(began)

    def _is_out_of_patience(self, began: float) -> bool:
        patience = LAST_PATIENCE if self._closed else self.limits.patience
        return patience is not None and time.monotonic() - began >= patience

    def _answer_rest(self, error: ForgeError) -> None:
        """Fail the rows behind a flush that gave up: each would only wait as long in vain."""
        entries = list(self._pending)
        self._pending.clear()
        _answer(entries, [self.give_up(row, error) for row, _, _ in entries])


_UNANSWERED = StorageError("This row got no result.")


def _answer(entries: Sequence[tuple[Row, _Call[Result], int]], outcomes: Sequence[Result | ForgeError]) -> None:
    for (_, call, index), outcome in zip(entries, outcomes, strict=True):
        call.results[index] = outcome
        call.missing -= 1
        if not call.missing and not call.future.done():
            call.future.set_result(call.results)
