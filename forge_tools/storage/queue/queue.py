"""The execution queue: submit with idempotency keys and without, claim, finish and read back, every hot statement in natural batches."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import ColumnElement, delete, exists, or_, select

from forge_tools.errors import ForgeError, SubmitOutcomeUnknownError, UnstorableRowError
from forge_tools.records import (
    Claim,
    Holder,
    Kept,
    LinkedExecution,
    NewExecution,
    Outcome,
    Scope,
    StoredResult,
    Wakeup,
    is_id,
)
from forge_tools.storage.connection.database import Database
from forge_tools.storage.connection.faults import UnreachableError
from forge_tools.storage.functions import from_now, seconds_between
from forge_tools.storage.heartbeat import Answers, Heartbeat
from forge_tools.storage.models import execution_attempts, execution_queue, idempotency_keys
from forge_tools.storage.queue import transitions
from forge_tools.storage.queue.batcher import Batcher, Limits
from forge_tools.storage.rows import Answer, Ask, Record, clean, unstorable

Result = TypeVar("Result")

MAX_ATTEMPT = 2**31 - 2

kept = idempotency_keys.c


class HotPath(Protocol):
    """The hot statements of one database. Each takes rows, returns one answer a row in order, and may be repeated whole."""

    async def submit(self, rows: Sequence[NewExecution]) -> list[ForgeError | None]: ...

    async def submit_linked(self, rows: Sequence[LinkedExecution]) -> list[Answer]: ...

    async def record(self, rows: Sequence[Record]) -> list[ForgeError | None]: ...

    async def claim(self, rows: Sequence[Ask], scope: Scope) -> list[Claim | None]: ...

    async def finish(self, rows: Sequence[Outcome]) -> list[bool]: ...

    async def results(self, ids: Sequence[str]) -> list[StoredResult | None]: ...

    async def beat(self, rows: Sequence[Heartbeat]) -> Sequence[Answers | ForgeError]: ...

    async def due(self, scope: Scope, limit: int) -> list[Wakeup]: ...

    async def close(self) -> None: ...


class ExecutionQueue:
    """Executions that are not over, addressed by id, attempt and token."""

    def __init__(self, hot: HotPath, database: Database, *, limits: Limits) -> None:
        self._hot = hot
        self._database = database
        self._may_only_ask: bool | None = None
        self._limits = limits
        self._submits: Batcher[NewExecution, None] = Batcher(
            hot.submit, limits, size=lambda new: new.size, give_up=_submit_failed
        )
        self._linked: Batcher[LinkedExecution, Holder | None] = Batcher(
            hot.submit_linked,
            limits,
            size=lambda row: row.size,
            give_up=lambda row, error: _submit_failed(row.new, error),
        )
        self._records: Batcher[Record, None] = Batcher(hot.record, limits, size=lambda row: row[0].size + row[1].size)
        self._finishes: Batcher[Outcome, bool] = Batcher(hot.finish, limits, size=lambda outcome: outcome.size)
        self._results: Batcher[str, StoredResult | None] = Batcher(hot.results, limits)
        self._claims: dict[Scope, Batcher[Ask, Claim | None]] = {}

    async def submit(self, new: NewExecution) -> None:
        """Commit `new` as queued. Submitting an id again changes nothing.

        Raises:
            DatabaseUnavailableError: nothing was written.
            SubmitOutcomeUnknownError: the connection broke during the commit and stayed away.
            UnstorableRowError: this row cannot be stored as it is.
        """
        [error] = await self.submit_many([new])
        if error is not None:
            raise error

    async def submit_many(self, rows: Sequence[NewExecution]) -> list[ForgeError | None]:
        """Commit `rows` as queued; one error or None each, in order."""
        self._database.guard()
        errors: list[ForgeError | None] = [_bad_id(new.id) for new in rows]
        accepted = [index for index, error in enumerate(errors) if error is None]
        outcomes = await self._submits.add_many([rows[index] for index in accepted])
        for index, outcome in zip(accepted, outcomes, strict=True):
            errors[index] = outcome
        return errors

    async def submit_linked(self, rows: Sequence[LinkedExecution]) -> list[Answer]:
        """Commit calls as queued, each with its idempotency key and links in the same transaction; one answer each, in order.

        A call is not stored if another execution holds its key. Submitting an id again changes nothing.
        """
        self._database.guard()
        for row in rows:
            if (error := _bad_id(row.new.id)) is not None:
                raise error
        return list(await self._linked.add_many(rows))

    async def purge_keys(self, most: int = 500) -> int:
        """Delete at most so many idempotency keys that have expired; returns how many went."""
        overdue = select(kept.execution_id).where(_is_spent()).order_by(kept.expires_at).limit(most)
        gone = delete(idempotency_keys).where(kept.execution_id.in_(overdue.with_for_update(skip_locked=True)))
        return await self._database.execute(gone)

    async def record(self, new: NewExecution, outcome: Outcome) -> None:
        """Commit an execution that is over as it arrives, such as a rejected one; attempt 0."""
        self._database.guard()
        error = _bad_id(new.id)
        if error is not None:
            raise error
        await self._records.add((new, outcome))

    async def claim(self, wakeups: Sequence[Wakeup], scope: Scope) -> list[Claim]:
        """Claim those executions that `scope` may run; the others are absent from the answer.

        Do not cancel this: nobody would run what was claimed by then.
        """
        self._database.guard()
        asks = [Ask(wakeup.id, wakeup.attempt, str(uuid.uuid4())) for wakeup in wakeups if _is_plausible(wakeup)]
        outcomes = await self._claims_of(scope).add_many(asks)
        claims = [claim for claim in outcomes if isinstance(claim, Claim)]
        # What was claimed beside a row that the database refuses is this worker's, and has to run.
        return claims or [claim for claim in _values(outcomes) if claim is not None]

    async def due(self, scope: Scope, limit: int) -> list[Wakeup]:
        """Up to `limit` executions that `scope` could claim now: those due longest, in order of id."""
        self._database.guard()
        return await self._hot.due(scope, limit)

    async def finish(self, outcome: Outcome) -> Kept:
        """Commit how an attempt ended. LATE: it no longer belonged to its worker, and the outcome is kept as a `late` event."""
        [kept] = await self.finish_many([outcome])
        return kept

    async def finish_many(self, outcomes: Sequence[Outcome]) -> list[Kept]:
        """Commit how attempts ended, in order. An outcome that cannot be stored ends its execution as UNSTORABLE."""
        self._database.guard()
        known = [index for index, outcome in enumerate(outcomes) if is_id(outcome.id) and is_id(outcome.token)]
        rows = [outcomes[index] for index in known]
        settled = await self._finishes.add_many(rows)
        refused = {index: error for index, error in enumerate(settled) if isinstance(error, UnstorableRowError)}
        if refused:
            replaced = await self._finishes.put([unstorable(rows[index], error) for index, error in refused.items()])
            for index, result in zip(refused, replaced, strict=True):
                is_taken = isinstance(result, UnstorableRowError)  # its number, by an attempt that somebody else wrote
                settled[index] = await transitions.settle(self._database, rows[index]) if is_taken else result
        kept = dict.fromkeys(range(len(outcomes)), Kept.LATE)
        for place, (index, took_effect) in enumerate(zip(known, _values(settled), strict=True)):
            if took_effect:
                kept[index] = Kept.REPLACED if place in refused else Kept.WHOLE
        return list(kept.values())

    async def results(self, ids: Sequence[str]) -> list[StoredResult]:
        """The results of those `ids` that have ended."""
        self._database.guard()
        found = _values(await self._results.put([id_ for id_ in ids if is_id(id_)]))
        return [result for result in found if result is not None]

    async def cancel(self, execution_id: str, *, actor: str, reason: str = "") -> transitions.Cancellation:
        """End a queued execution, or ask the owner of a running one to stop it.

        Raises:
            ExecutionNotFoundError: no execution has that id.
        """
        if not is_id(execution_id):
            raise transitions.no_such_execution(execution_id)
        if self._may_only_ask is None:
            self._may_only_ask = await transitions.may_only_ask(self._database)
        cancel = transitions.ask_to_cancel if self._may_only_ask else transitions.cancel
        return await cancel(self._database, execution_id, clean(actor), clean(reason))

    async def sweep(self, limit: int = 500) -> list[str]:
        """End executions that nobody will run: expired, cancelled while they wait, attempts used up. Returns their ids."""
        return await transitions.sweep(self._database, limit)

    async def recover(self, instance: str, reason: str, beat: int | None = None) -> tuple[list[str], list[str]]:
        """Take the running executions of a dead worker instance from it; returns the ids queued again, and those lost.

        An instance with a heartbeat since `beat`, the last one that its judge saw, is left alone.
        """
        return await transitions.recover(self._database, instance, reason, beat)

    async def follow_clock(self, step: float) -> int:
        """Keep what is queued as far from its deadlines as it was before the database's clock was set by `step` seconds.

        Set forward, nothing expires that had time left; set back, nothing due waits for the old time to come again.
        Returns how many rows moved.
        """
        return await transitions.follow_clock(self._database, step)

    async def listeners(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """(channel, id) of whoever has to be notified about `ids`: the worker instance that runs one, else its submitter."""
        return await transitions.listeners(self._database, [id_ for id_ in ids if is_id(id_)])

    async def cancels(self, instance: str) -> list[Wakeup]:
        """What a worker instance runs and was asked to cancel."""
        return await transitions.cancels(self._database, instance)

    async def close(self) -> None:
        """Write what is under way and accept no more; claims first, since some may have to be given back."""
        await asyncio.gather(*(batcher.close() for batcher in self._claims.values()))
        batchers: list[Batcher[Any, Any]] = [self._submits, self._linked, self._records, self._finishes, self._results]
        await asyncio.gather(*(batcher.close() for batcher in batchers))

    def _claims_of(self, scope: Scope) -> Batcher[Ask, Claim | None]:
        if scope not in self._claims:

            async def flush(rows: Sequence[Ask]) -> list[Claim | None]:
                return await self._hot.claim(rows, scope)

            self._claims[scope] = Batcher(flush, self._limits)
        return self._claims[scope]


def _submit_failed(new: NewExecution, error: ForgeError) -> ForgeError:
    if not (isinstance(error, UnreachableError) and error.maybe_committed):
        return error
    return SubmitOutcomeUnknownError(
        f"The connection broke while execution {new.id} was being committed, so it may or may not be queued. "
        f"Attach to the id, or submit it again with the same id: it is stored once. ({error.message})",
        new.id,
    )


def _bad_id(execution_id: str) -> UnstorableRowError | None:
    if is_id(execution_id):
        return None
    return UnstorableRowError(f"{execution_id[:60]!r} is no execution id; use forge_tools.records.new_id().")


def _is_plausible(wakeup: Wakeup) -> bool:
    """Wakeups come from the broker, to which others may write."""
    return (
        isinstance(wakeup.id, str)
        and is_id(wakeup.id)
        and isinstance(wakeup.attempt, int)
        and 0 <= wakeup.attempt <= MAX_ATTEMPT
    )


def _values(outcomes: Sequence[Result | ForgeError]) -> list[Result]:
    """The results; the first error among them is raised."""
    results = []
    for outcome in outcomes:
        if isinstance(outcome, ForgeError):
            raise outcome
        results.append(outcome)
    return results


def _is_spent() -> ColumnElement[bool]:
    """Whether its execution has been over for as long as the key was to hold."""
    ended = execution_attempts.c
    is_under_way = exists().where(execution_queue.c.id == kept.execution_id)
    ended_lately = exists().where(
        ended.execution_id == kept.execution_id,
        ended.final,
        seconds_between(ended.completed_at, from_now(0.0)) < kept.ttl,
    )
    return (kept.expires_at <= from_now(0.0)) & ~or_(is_under_way, ended_lately)
