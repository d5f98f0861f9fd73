"""What moves an execution from outside its body: cancel, expiry, recovery of dead workers, a changed clock."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Row,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    union_all,
    update,
)

from forge_tools.errors import ErrorCode, ExecutionNotFoundError, ForgeError
from forge_tools.model.diagnosis import LostBody, moment
from forge_tools.model.execution import ExecutionStatus, Outcome, Wakeup, is_id
from forge_tools.model.places import serving_command
from forge_tools.model.tools import tool_key
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import any_of, from_now, is_granted, seconds_between
from forge_tools.storage.queue.batcher import Batcher, Limits
from forge_tools.storage.queue.workers import is_alive
from forge_tools.storage.rows import clean
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import (
    execution_attempts,
    execution_events,
    execution_queue,
    executions,
    idempotency_keys,
    workers,
)
from forge_tools.storage.tables import NOBODY

live, kept = execution_queue.c, idempotency_keys.c
QUEUED, RUNNING = ExecutionStatus.QUEUED.value, ExecutionStatus.RUNNING.value
AWAITING = ExecutionStatus.AWAITING_APPROVAL.value

SERVING_SECONDS = 15.0
"""A worker silent for longer may be dead, so nothing is queued that only it could run."""

LEAST_LEAD = 5.0
"""How many seconds a row must be ahead of a clock that was set back to count as written before that."""


Cancellation = Literal["cancelled", "requested", "over"]


class _Cancel(NamedTuple):
    id: str
    actor: str
    reason: str


_TOGETHER = Limits(rows=500, patience=0.0)
"""Of one transaction. It is not repeated if it may have been committed: a second cancel would answer `over`."""


class Transitions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._may_only_ask: bool | None = None
        self._cancels: Batcher[_Cancel, Cancellation] = Batcher(self._cancel_all, _TOGETHER)

    async def cancel(self, execution_id: str, *, actor: str, reason: str = "") -> Cancellation:
        """End a queued execution, or ask the owner of a running one to stop it. Concurrent cancels share transactions.

        Raises:
            ExecutionNotFoundError: no execution has that id.
        """
        if not is_id(execution_id):
            raise _no_such_execution(execution_id)
        return await self._cancels.add(_Cancel(execution_id, clean(actor), clean(reason)))

    async def close(self) -> None:
        """Wait for the cancels under way, and accept no more."""
        await self._cancels.close()

    async def sweep(self, limit: int = 500) -> list[str]:
        """End executions that nobody will run: expired, or cancelled while they wait. Returns their ids."""

        async def work(connection: AsyncConnection) -> list[str]:
            rows = await _lock(connection, _is_over(limit), limit=limit)
            ids = [row.id for row in rows]
            await _end(connection, [_unclaimable(row) for row in rows], ids)
            return ids

        return await self._database.write(work)

    async def recover(self, instance: str, reason: str, beat: int | None = None) -> tuple[list[str], list[str]]:
        """Take the running executions of a dead worker instance; returns the ids that were requeued, and those lost.

        The instance counts as stopped until its next heartbeat. If it had a heartbeat since `beat`, the last one that
        its judge saw, it is left alone. An execution may have killed it: those of the async lane that were present at
        two deaths continue in the process lane, each alone in a child, if somebody serves them there.
        """
        detail = {"reason": clean(reason), "worker": instance}

        async def work(connection: AsyncConnection) -> tuple[list[str], list[str]]:
            # Locked, so that no heartbeat comes between this judgement and what follows from it.
            it = select(workers.c.beat, workers.c.last_seen_at).where(workers.c.id == instance).with_for_update()
            last = (await connection.execute(it)).one_or_none()
            # -1: an owner without a row, as `Workers.beats` returns it.
            if beat is not None and beat != (last.beat if last else -1):
                return [], []
            silence = f"its last heartbeat was at {moment(last.last_seen_at)}" if last else clean(reason)
            rows = await _lock(connection, (live.owner == instance) & (live.status == RUNNING))
            bodies = {row.id: _lost_body(row, silence) for row in rows}
            is_it = (workers.c.id == instance) & workers.c.stopped_at.is_(None)
            await connection.execute(update(workers).where(is_it).values(stopped_at=from_now(0.0)))
            again = [row for row in rows if bodies[row.id].may_run_again]
            lost = [row for row in rows if not bodies[row.id].may_run_again]
            # First, since requeueing counts the deaths at which each was present, this one included.
            await _end(connection, [_lost(row, bodies[row.id]) for row in rows], [row.id for row in lost])
            await _requeue(connection, again, detail)
            if lost:
                await connection.execute(_ADD_EVENTS, [_event(row, "lost", "recovery", detail) for row in lost])
            return [row.id for row in again], [row.id for row in lost]

        return await self._database.write(work)

    async def settle(self, outcome: Outcome) -> bool:
        """End an execution that cannot be finished because somebody else has written an attempt with that number."""

        async def work(connection: AsyncConnection) -> bool:
            is_its_own = (live.id == outcome.id) & (live.attempt == outcome.attempt) & (live.token == outcome.token)
            rows = await _lock(connection, is_its_own & (live.status == RUNNING))
            error = f"Attempt {outcome.attempt} ended, but another process had already recorded an attempt of that number; its result is not kept."
            ended = {"attempt": outcome.attempt}
            ends = [_attempt(row, ExecutionStatus.FAILED, ErrorCode.UNSTORABLE, error) | ended for row in rows]
            await _end(connection, ends, [row.id for row in rows])
            return bool(rows)

        return await self._database.write(work)

    async def follow_clock(self, step: float) -> int:
        """Keep what is queued as far from its deadlines as before the database's clock was set by `step` seconds.

        After a step forward, nothing expires that had time left; after a step back, nothing due waits for the old time
        to return. Rows from before the step are recognized by when they entered, or re-enter, the queue. Returns how
        many rows moved.
        """
        due: ColumnElement[Any] = from_now(seconds_between(from_now(0.0), live.not_before) + step)
        # Rows from before a step forward seem `step` seconds old at least, newer ones hardly at all.
        if step > 0:
            was_due = live.not_before <= from_now(-step)
            due, moved = case((was_due, live.not_before), else_=due), _waiting.where(_came_in <= -step / 2)
        else:
            moved = _waiting.where(_came_in > LEAST_LEAD)
        return await self._database.execute(moved.values(not_before=due, expires_at=from_now(_expires_in + step)))

    async def listeners(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """Return (channel, id) of those to notify about `ids`: the worker instance that runs it, or its submitter."""
        them = executions.c
        channel = case((live.status == RUNNING, live.owner), else_=them.reply_to).label("channel")
        joined = executions.outerjoin(execution_queue, live.id == them.id)
        query = (
            select(channel, them.id)
            .select_from(joined)
            .where(any_of(them.id, [id_ for id_ in ids if is_id(id_)]), channel.is_not(None))
        )
        return [(row.channel, row.id) for row in await self._database.rows(query)]

    async def cancels(self, instance: str) -> list[Wakeup]:
        is_asked = live.cancel_requested_at.is_not(None)
        query = select(live.id, live.attempt).where(is_asked, live.owner == instance, live.status == RUNNING)
        return [Wakeup(row.id, row.attempt) for row in await self._database.rows(query)]

    async def purge_keys(self, most: int = 500) -> int:
        """Delete up to `most` expired idempotency keys; returns how many."""
        overdue = select(kept.execution_id).where(_is_spent()).order_by(kept.expires_at).limit(most)
        gone = delete(idempotency_keys).where(kept.execution_id.in_(overdue.with_for_update(skip_locked=True)))
        return await self._database.execute(gone)

    async def _cancel_all(self, cancels: Sequence[_Cancel]) -> list[Cancellation | ForgeError]:
        if self._may_only_ask is None:
            # A client whose role may not write to the queue (deploy/postgres/roles.sql) may only ask.
            self._may_only_ask = not await self._database.scalar(select(is_granted(execution_queue.name, "DELETE")))
        cancel = _ask_to_cancel if self._may_only_ask else _cancel
        answers = await self._database.write(partial(cancel, cancels=cancels))
        return [answers.get(one.id) or _no_such_execution(one.id) for one in cancels]


async def _ask_to_cancel(connection: AsyncConnection, cancels: Sequence[_Cancel]) -> dict[str, Cancellation]:
    """Do the same as `_cancel`, through the function that such a role may call."""
    answers: dict[str, Any] = {}
    for one in sorted(cancels):  # in order of id, as all lock
        if one.id not in answers:
            called = func.forge_cancel(cast(one.id, executions.c.id.type), one.actor, one.reason)
            answers[one.id] = await connection.scalar(select(called))
    return {id_: answer for id_, answer in answers.items() if answer != "unknown"}


async def _cancel(connection: AsyncConnection, cancels: Sequence[_Cancel]) -> dict[str, Cancellation]:
    """End queued executions; ask the owners of running ones to stop. What does not exist is absent from the answer."""
    first = {one.id: one for one in reversed(cancels)}
    rows = await _lock(connection, any_of(live.id, first))
    running, waiting = [row for row in rows if row.status == RUNNING], [row for row in rows if row.status != RUNNING]
    events = [_event(row, "cancel", first[row.id].actor, {"reason": first[row.id].reason}) for row in rows]
    if events:
        await connection.execute(_ADD_EVENTS, events)
    if running:  # their owners' next heartbeats return them
        at = func.coalesce(live.cancel_requested_at, from_now(0.0))
        is_asked = any_of(live.id, [row.id for row in running])
        await connection.execute(update(execution_queue).where(is_asked).values(cancel_requested_at=at))
    ends = [_cancelled(row, first[row.id].actor, first[row.id].reason) for row in waiting]
    await _end(connection, ends, [row.id for row in waiting])
    known = await connection.scalars(select(executions.c.id).where(any_of(executions.c.id, first)))
    answers: dict[str, Cancellation] = dict.fromkeys(known, "over")
    answers.update(dict.fromkeys((row.id for row in running), "requested"))
    answers.update(dict.fromkeys((row.id for row in waiting), "cancelled"))
    return answers


def _no_such_execution(execution_id: str) -> ExecutionNotFoundError:
    return ExecutionNotFoundError(f"No execution has the id {execution_id[:60]}.")


_ADD_ATTEMPTS = insert(execution_attempts).values(completed_at=from_now(0.0))
_ADD_EVENTS = insert(execution_events).values(at=from_now(0.0))
_REQUEUE = (
    update(execution_queue)
    .where(live.id == bindparam("row"))
    .values(
        status=QUEUED,
        **NOBODY,
        lane=bindparam("to_lane"),
        not_before=from_now(0.0),
        expires_at=case(
            (live.expires_at > from_now(live.expires_in), live.expires_at), else_=from_now(live.expires_in)
        ),
    )
)


def _is_over(limit: int) -> ColumnElement[bool]:
    """Select rows that wait in vain, each kind through its own index; in order of id the whole queue might be read."""
    is_waiting = live.status.in_([QUEUED, AWAITING])
    has_expired, is_cancelled = live.expires_at <= from_now(0.0), live.cancel_requested_at.is_not(None)
    found = [
        select(live.id).where(is_waiting, has_expired).order_by(live.expires_at).limit(limit),
        select(live.id).where(is_waiting, is_cancelled).limit(limit),
    ]
    ids = union_all(*(select(one.subquery().c.id) for one in found))
    return live.id.in_(ids) & is_waiting & or_(has_expired, is_cancelled)


async def _lock(
    connection: AsyncConnection, condition: ColumnElement[bool], *, limit: int | None = None
) -> Sequence[Row[Any]]:
    """Lock rows in order of id; with a limit, skip those already locked."""
    query = select(execution_queue).where(condition).order_by(live.id).limit(limit)
    return (await connection.execute(query.with_for_update(skip_locked=limit is not None))).all()


async def _end(connection: AsyncConnection, ends: Sequence[dict[str, Any]], over: Sequence[Any]) -> None:
    """Insert these attempts, and delete ended rows from the queue, even if a careless restore put them back."""
    if ends and (kept := await _numbered(connection, ends)):
        await connection.execute(_ADD_ATTEMPTS, kept)
    if over:
        await connection.execute(delete(execution_queue).where(any_of(live.id, over)))


async def _numbered(connection: AsyncConnection, ends: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the attempts to insert: none for an execution that has ended; a used number becomes the next free one."""
    ended = execution_attempts.c
    query = select(ended.execution_id, ended.attempt, ended.final)
    there: dict[Any, set[int]] = defaultdict(set)
    has_ended = set()
    for row in await connection.execute(query.where(any_of(ended.execution_id, [end["execution_id"] for end in ends]))):
        there[row.execution_id].add(row.attempt)
        if row.final:
            has_ended.add(row.execution_id)
    return [
        end | {"attempt": max(numbers) + 1} if end["attempt"] in (numbers := there[end["execution_id"]]) else end
        for end in ends
        if end["execution_id"] not in has_ended
    ]


async def _requeue(connection: AsyncConnection, rows: Sequence[Row[Any]], detail: dict[str, Any]) -> None:
    """Requeue what a dead worker left. What must run alone moves to the process lane, if somebody serves it there."""
    suspects = await _suspects(connection, [row.id for row in rows if row.lane == "async"])
    served = await _served_in_processes(connection) if suspects else {}
    alone = {row.id for row in rows if row.id in suspects and row.tool_key in served.get(row.queue, ())}
    if rows:
        lanes = [{"row": row.id, "to_lane": "process" if row.id in alone else row.lane} for row in rows]
        await connection.execute(_REQUEUE, lanes)
        moved = detail | {"lane": "process, to run alone"}
        told = [_event(row, "requeue", "recovery", moved if row.id in alone else detail) for row in rows]
        await connection.execute(_ADD_EVENTS, told)


def _event(row: Row[Any], kind: str, actor: str, detail: dict[str, Any]) -> dict[str, Any]:
    return {"execution_id": row.id, "kind": kind, "actor": actor, "detail": detail}


def _lost_body(row: Row[Any], silence: str) -> LostBody:
    return LostBody(
        what=f"Worker {row.owner} on {row.hostname} (process {row.pid}) died ({silence})",
        started_at=row.started_at,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        idempotent=row.idempotent,
    )


def _lost(row: Row[Any], body: LostBody) -> dict[str, Any]:
    started = {"started_at": row.started_at, "worker_id": row.owner, "hostname": row.hostname, "pid": row.pid}
    end = _attempt(row, ExecutionStatus.LOST, ErrorCode.LOST, str(body))
    return end | started | {"attempt": row.attempt, "final": not body.may_run_again}


_WAITED_FOR = {QUEUED: "before it started", AWAITING: "before anybody approved it"}


def _cancelled(row: Row[Any], actor: str, reason: str) -> dict[str, Any]:
    when = f"after attempt {row.attempt} of {row.max_attempts}" if row.attempt else _WAITED_FOR[row.status]
    error = f"Cancelled by {actor} {when}" + (f": {reason}" if reason else ".")
    return _attempt(row, ExecutionStatus.CANCELLED, ErrorCode.CANCELLED, error)


def _unclaimable(row: Row[Any]) -> dict[str, Any]:
    if row.cancel_requested_at is not None:
        error = "Cancelled before it could run again."
        return _attempt(row, ExecutionStatus.CANCELLED, ErrorCode.CANCELLED, error)
    if row.status == AWAITING:
        error = f"Nobody approved it within {row.expires_in:g} s, so it did not run. Submit it again to ask once more."
        return _attempt(row, ExecutionStatus.REJECTED, ErrorCode.EXPIRED, error)
    if row.attempt >= row.max_attempts:
        error = f"All {row.max_attempts} attempts were used, and none of them completed."
        return _attempt(row, ExecutionStatus.LOST, ErrorCode.LOST, error)
    error = (
        f"No worker took it from queue '{row.queue}' (lane {row.lane}) within {row.expires_in:g} s. "
        f"Start one: {serving_command(row.queue, row.lane)}"
    )
    return _attempt(row, ExecutionStatus.EXPIRED, ErrorCode.EXPIRED, error)


def _attempt(row: Row[Any], status: ExecutionStatus, code: ErrorCode, error: str) -> dict[str, Any]:
    """Build a final attempt, numbered after the existing ones, whose body never started."""
    return {
        "execution_id": row.id,
        "attempt": row.attempt + 1,
        "final": True,
        "status": status.value,
        **dict.fromkeys(("worker_id", "hostname", "pid", "started_at")),
        "error": error,
        "error_code": code.value,
        "metadata": {},
    }


async def _suspects(connection: AsyncConnection, ids: Sequence[str]) -> set[str]:
    """Return those that were present at two deaths of workers, the current one included.

    A worker with a later heartbeat was only frozen. One whose neighbours on the host fell silent with it died with the
    host.
    """
    if not ids:
        return set()
    ended, dead, neighbour = execution_attempts.c, workers.alias().c, workers.alias().c
    outlived = seconds_between(dead.last_seen_at, neighbour.last_seen_at)
    # Half of the silence: the last heartbeats of a host that vanished are hardly apart, those of one that lives go on.
    has_neighbour = exists().where(
        neighbour.hostname == dead.hostname,
        neighbour.id != dead.id,
        neighbour.started_at <= ended.completed_at,
        outlived > seconds_between(dead.last_seen_at, ended.completed_at) / 2,
    )
    is_death = (ended.status == ExecutionStatus.LOST.value) & ended.token.is_(None)
    found = (
        select(ended.execution_id)
        .join(dead.id.table, dead.id == ended.worker_id)
        .where(any_of(ended.execution_id, ids), is_death, dead.last_seen_at <= ended.completed_at, has_neighbour)
        .group_by(ended.execution_id)
        .having(func.count() > 1)
    )
    return set(await connection.scalars(found))


async def _served_in_processes(connection: AsyncConnection) -> Mapping[str, set[str]]:
    query = select(workers.c.id, workers.c.queues, workers.c.tools).where(
        workers.c.lane == "process", is_alive(SERVING_SECONDS)
    )
    served: dict[str, set[str]] = {}
    for row in (await connection.execute(query)).all():
        for queue in row.queues:
            served.setdefault(queue, set()).update(tool_key(*one) for one in row.tools.items())
    return served


# A row entered the queue at its expiry less the time it was given; what waits for a retry re-enters when it is due.
_expires_in = seconds_between(from_now(0.0), live.expires_at)
_came_in = _expires_in - live.expires_in
_waiting = update(execution_queue).where(live.status.in_([QUEUED, AWAITING]))


def _is_spent() -> ColumnElement[bool]:
    """Return whether its execution has been over for as long as the key was to hold."""
    ended = execution_attempts.c
    is_under_way = exists().where(execution_queue.c.id == kept.execution_id)
    ended_lately = exists().where(
        ended.execution_id == kept.execution_id,
        ended.final,
        seconds_between(ended.completed_at, from_now(0.0)) < kept.ttl,
    )
    return (kept.expires_at <= from_now(0.0)) & ~or_(is_under_way, ended_lately)
