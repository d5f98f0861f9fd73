"""The execution queue: submit with and without idempotency keys, claim, finish and read back, in natural batches."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from forge_tools.errors import ForgeError, SubmitOutcomeUnknownError, UnstorableRowError
from forge_tools.model.calls import ToolResult
from forge_tools.model.execution import Claim, Holder, Kept, NewExecution, Outcome, Scope, Wakeup, is_id
from forge_tools.storage.connection.faults import UnreachableError
from forge_tools.storage.queue.batcher import Batcher, Limits
from forge_tools.storage.queue.postgres import PostgresHotPath
from forge_tools.storage.queue.sqlite import SqliteHotPath
from forge_tools.storage.rows import Answer, Ask, Record, unstorable

Result = TypeVar("Result")


HotPath = SqliteHotPath | PostgresHotPath
"""The hot statements of one database. Each takes rows, returns an answer per row in order, and may be repeated."""


class ExecutionQueue:
    """Executions that are not over, addressed by id, attempt and token.

    `settle` ends one that cannot be finished because somebody else wrote an attempt with its number.
    """

    def __init__(self, hot: HotPath, settle: Callable[[Outcome], Awaitable[bool]], *, limits: Limits) -> None:
        self._hot = hot
        self._settle = settle
        self._limits = limits
        self._submits: Batcher[NewExecution, None] = Batcher(
            hot.submit, limits, size=lambda new: new.size, give_up=_submit_failed
        )
        self._linked: Batcher[NewExecution, Holder | None] = Batcher(
            hot.submit_linked, limits, size=lambda new: new.size, give_up=_submit_failed
        )
        self._records: Batcher[Record, None] = Batcher(hot.record, limits, size=lambda row: row[0].size + row[1].size)
        self._finishes: Batcher[Outcome, bool] = Batcher(hot.finish, limits, size=lambda outcome: outcome.size)
        self._results: Batcher[str, ToolResult | None] = Batcher(hot.results, limits)
        self._claims: dict[Scope, Batcher[Ask, Claim | None]] = {}

    async def submit_many(self, rows: Sequence[NewExecution]) -> list[Answer]:
        """Commit `rows` as queued, each in one transaction with its key and what it repeats; returns answers in order.

        A call is not stored if another execution holds its key. Submitting an id again changes nothing.
        """
        self._hot.guard()
        batcher: Batcher[NewExecution, Any] = self._linked if any(new.is_linked for new in rows) else self._submits
        return await batcher.add_many(rows)

    async def record(self, new: NewExecution, outcome: Outcome) -> None:
        """Commit, as attempt 0, an execution that is over when it arrives, such as a rejected one."""
        self._hot.guard()
        await self._records.add((new, outcome))

    async def claim(self, wakeups: Sequence[Wakeup], scope: Scope) -> list[Claim]:
        """Claim those executions that `scope` may run; the others are absent from the answer.

        Do not cancel this: nobody would run what was already claimed.
        """
        self._hot.guard()
        asks = [Ask(wakeup.id, wakeup.attempt, str(uuid.uuid4())) for wakeup in wakeups]
        batcher = self._claims.get(scope)
        if batcher is None:
            batcher = self._claims[scope] = Batcher(partial(self._hot.claim, scope=scope), self._limits)
        outcomes = await batcher.add_many(asks)
        claims = [claim for claim in outcomes if isinstance(claim, Claim)]
        # Raise an error only if nothing was claimed: whatever was belongs to this worker, which must run it.
        return claims or [claim for claim in _values(outcomes) if claim is not None]

    async def due(self, scope: Scope, limit: int) -> list[Wakeup]:
        """List up to `limit` executions that `scope` could claim now: those due longest, in order of id."""
        self._hot.guard()
        return await self._hot.due(scope, limit)

    async def finish_many(self, outcomes: Sequence[Outcome]) -> list[Kept]:
        """Commit how attempts ended, in order. An outcome that cannot be stored ends its execution as UNSTORABLE.

        LATE: the worker no longer owned the attempt; its outcome is kept as a `late` event.
        """
        self._hot.guard()
        settled = await self._finishes.add_many(outcomes)
        refused = {index: error for index, error in enumerate(settled) if isinstance(error, UnstorableRowError)}
        if refused:
            replaced = await self._finishes.put(
                [unstorable(outcomes[index], error) for index, error in refused.items()]
            )
            for index, result in zip(refused, replaced, strict=True):
                is_taken = isinstance(result, UnstorableRowError)  # its number, by an attempt of somebody else
                settled[index] = await self._settle(outcomes[index]) if is_taken else result
        kept = [Kept.WHOLE if took_effect else Kept.LATE for took_effect in _values(settled)]
        for index in refused:
            if kept[index] is Kept.WHOLE:
                kept[index] = Kept.REPLACED
        return kept

    async def results(self, ids: Sequence[str]) -> list[ToolResult]:
        """Return the results of those `ids` that have ended."""
        self._hot.guard()
        found = _values(await self._results.put([id_ for id_ in ids if is_id(id_)]))
        return [result for result in found if result is not None]

    async def close(self) -> None:
        """Write what is under way and accept no more; claims first, since some may have to be given back."""
        await asyncio.gather(*(batcher.close() for batcher in self._claims.values()))
        batchers: list[Batcher[Any, Any]] = [self._submits, self._linked, self._records, self._finishes, self._results]
        await asyncio.gather(*(batcher.close() for batcher in batchers))


def _submit_failed(new: NewExecution, error: ForgeError) -> ForgeError:
    if not (isinstance(error, UnreachableError) and error.maybe_committed):
        return error
    return SubmitOutcomeUnknownError(
        f"The connection broke while execution {new.id} was being committed, so it may or may not be queued. "
        f"Attach to the id, or submit it again with the same id: it is stored once. ({error.message})",
        new.id,
    )


def _values(outcomes: Sequence[Result | ForgeError]) -> list[Result]:
    """Return the results, or raise the first error among them."""
    results = []
    for outcome in outcomes:
        if isinstance(outcome, ForgeError):
            raise outcome
        results.append(outcome)
    return results
