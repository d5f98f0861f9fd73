"""What moves an execution from outside its body: cancel, expiry, recovery of dead workers, a clock that is set."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Row,
    Update,
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
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.errors import ErrorCode, ExecutionNotFoundError
from forge_tools.records import ExecutionStatus, Loss, Outcome, Wakeup, is_id, moment
from forge_tools.records.places import serving_command
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import among, database_now, from_now, is_granted, seconds_between
from forge_tools.storage.models import (
    NOBODY,
    execution_attempts,
    execution_events,
    execution_queue,
    executions,
    workers,
)
from forge_tools.storage.queue.workers import hosted_keys, is_alive
from forge_tools.storage.rows import clean

live = execution_queue.c
QUEUED, RUNNING = ExecutionStatus.QUEUED.value, ExecutionStatus.RUNNING.value
AWAITING = ExecutionStatus.AWAITING_APPROVAL.value

SERVING_SECONDS = 15.0
"""A worker silent for longer may be dead, and is sent nothing that only it could run."""

LEAST_LEAD = 5.0
"""Seconds by which a row must be ahead of a clock that was set back, to be one from before."""


class Endings:
    """Changes that need no batches. Each locks its rows in id order, as every batched statement does."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._only_asks: bool | None = None

    async def cancel(self, execution_id: str, *, actor: str, reason: str) -> Literal["cancelled", "requested", "over"]:
        """End it if it is queued; if it runs, leave word for its owner."""

        if not is_id(execution_id):
            raise _no_such(execution_id)
        if await self._may_only_ask():
            return await self._ask_to_cancel(execution_id, clean(actor), clean(reason))

        async def work(connection: AsyncConnection) -> Literal["cancelled", "requested", "over"]:
            row = next(iter(await _lock(connection, live.id == execution_id)), None)
            if row is None:
                await _require(connection, execution_id)
                return "over"
            if row.status == RUNNING:
                await _request_cancel(connection, row, clean(actor), clean(reason))
                return "requested"
            await _add_events(connection, [row], "cancel", clean(actor), {"reason": clean(reason)})
            await _end_unstarted(connection, [_cancelled(row, clean(actor), clean(reason))])
            return "cancelled"

        return await self._database.write(work)

    async def _may_only_ask(self) -> bool:
        """Whether this is a client whose role may not write to the queue (deploy/postgres/roles.sql); asked once."""
        if self._only_asks is None:
            async with self._database.reading() as connection:
                self._only_asks = not await connection.scalar(select(is_granted(execution_queue.name, "DELETE")))
        return self._only_asks

    async def _ask_to_cancel(
        self, execution_id: str, actor: str, reason: str
    ) -> Literal["cancelled", "requested", "over"]:
        asked = select(func.forge_cancel(cast(execution_id, executions.c.id.type), actor, reason))
        answer: Any = await self._database.write(lambda connection: connection.scalar(asked))
        if answer == "unknown":
            raise _no_such(execution_id)
        told: Literal["cancelled", "requested", "over"] = answer
        return told

    async def sweep(self, limit: int) -> list[str]:
        """End executions that wait for what will not come: a claim, or an approval.

        Nothing is queued again without attempts left; what had none from the start is ended, too.
        """

        async def work(connection: AsyncConnection) -> list[str]:
            rows = await _lock(connection, _is_over(limit), limit=limit)
            await _end_unstarted(connection, [_unclaimable(row) for row in rows])
            return [row.id for row in rows]

        return await self._database.write(work)

    async def recover(self, boot: str, reason: str, beat: int | None) -> tuple[list[str], list[str]]:
        """Take the running executions of `boot` from it, and count it as stopped until it beats again.

        Nothing happens if its beat is no longer `beat`, unless that is None.
        One of them may be what ended it: those of the async lane that were present at two deaths go on in the process lane,
        where each runs alone in a child, if somebody serves them there.
        """
        detail = {"reason": clean(reason), "worker": boot}

        async def work(connection: AsyncConnection) -> tuple[list[str], list[str]]:
            if beat is not None and await _beat(connection, boot) != beat:
                return [], []
            rows = await _lock(connection, (live.owner == boot) & (live.status == RUNNING))
            silence = await _silence(connection, boot, clean(reason))
            losses = {row.id: _loss(row, silence) for row in rows}
            await connection.execute(_MARK_STOPPED, {"boot": boot})
            again = [row for row in rows if losses[row.id].may_run_again]
            lost = [row for row in rows if not losses[row.id].may_run_again]
            await _end(connection, [_lost(row, losses[row.id]) for row in rows], [row.id for row in lost])
            await _requeue(connection, again, detail)
            await _add_events(connection, lost, "lost", "recovery", detail)
            return [row.id for row in again], [row.id for row in lost]

        return await self._database.write(work)

    async def settle(self, outcome: Outcome) -> bool:
        """End what cannot be finished, because an attempt of its number is there that its worker did not write."""

        async def work(connection: AsyncConnection) -> bool:
            is_its_own = (live.id == outcome.id) & (live.attempt == outcome.attempt) & (live.token == outcome.token)
            rows = await _lock(connection, is_its_own & (live.status == RUNNING))
            error = f"Attempt {outcome.attempt} ended, but somebody else had written a row of that number; its result is not kept."
            ends = [_attempt(row, row.attempt, ExecutionStatus.FAILED, error, ErrorCode.UNSTORABLE) for row in rows]
            await _end_unstarted(connection, ends)
            return bool(rows)

        return await self._database.write(work)

    async def listeners(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """(channel, id) of those `ids` that run, or whose submitter can be notified."""
        asked = executions.c
        channel = case((live.status == RUNNING, live.owner), else_=asked.reply_to).label("channel")
        joined = executions.outerjoin(execution_queue, live.id == asked.id)
        query = select(channel, asked.id).select_from(joined).where(asked.id.in_(ids), channel.is_not(None))
        async with self._database.reading() as connection:
            return [(listener, id_) for listener, id_ in await connection.execute(query)]

    async def cancels(self, boot: str) -> list[Wakeup]:
        """The running executions of a boot whose cancel was asked."""
        query = select(live.id, live.attempt).where(
            live.cancel_requested_at.is_not(None), live.owner == boot, live.status == RUNNING
        )
        async with self._database.reading() as connection:
            return [Wakeup(id_, attempt) for id_, attempt in await connection.execute(query)]


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
_MARK_STOPPED = (
    update(workers)
    .where(workers.c.id == bindparam("boot"), workers.c.stopped_at.is_(None))
    .values(stopped_at=from_now(0.0))
)


def _is_over(limit: int) -> ColumnElement[bool]:
    """Rows that wait in vain, each kind found through its index: in the order of ids the whole queue might be read."""
    is_waiting = live.status.in_([QUEUED, AWAITING])
    has_expired, is_cancelled = live.expires_at <= from_now(0.0), live.cancel_requested_at.is_not(None)
    is_hopeless = (live.max_attempts < 1) & (live.status == QUEUED)
    found = [
        select(live.id).where(is_waiting, has_expired).order_by(live.expires_at).limit(limit),
        select(live.id).where(is_waiting, is_cancelled).limit(limit),
        select(live.id).where(is_hopeless).limit(limit),
    ]
    ids = union_all(*(select(one.subquery().c.id) for one in found))
    return live.id.in_(ids) & is_waiting & or_(has_expired, is_cancelled, is_hopeless)


async def _lock(
    connection: AsyncConnection, condition: ColumnElement[bool], *, limit: int | None = None
) -> Sequence[Row[Any]]:
    """Lock the rows in id order; with a limit, skip those that someone else holds."""
    query = select(execution_queue).where(condition).order_by(live.id).limit(limit)
    return (await connection.execute(query.with_for_update(skip_locked=limit is not None))).all()


async def _require(connection: AsyncConnection, execution_id: str) -> None:
    if await connection.scalar(select(executions.c.id).where(executions.c.id == execution_id)) is None:
        raise _no_such(execution_id)


def _no_such(execution_id: str) -> ExecutionNotFoundError:
    return ExecutionNotFoundError(f"No execution has the id {execution_id[:60]}.")


async def _request_cancel(connection: AsyncConnection, row: Row[Any], actor: str, reason: str) -> None:
    """Leave word for the owner; its next heartbeat finds it."""
    asked = func.coalesce(live.cancel_requested_at, from_now(0.0))
    await connection.execute(update(execution_queue).where(live.id == row.id).values(cancel_requested_at=asked))
    await _add_events(connection, [row], "cancel", actor, {"reason": reason})


async def _end_unstarted(connection: AsyncConnection, ends: Sequence[dict[str, Any]]) -> None:
    await _end(connection, ends, [end["execution_id"] for end in ends])


async def _end(connection: AsyncConnection, ends: Sequence[dict[str, Any]], over: Sequence[Any]) -> None:
    """Add the attempts and take what is over out of the queue, from which a careless restore may have brought it back."""
    if ends and (kept := await _numbered(connection, ends)):
        await connection.execute(_ADD_ATTEMPTS, kept)
    if over:
        await connection.execute(delete(execution_queue).where(among(live.id, over)))


async def _numbered(connection: AsyncConnection, ends: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The attempts to add: none to what has its end, and none under the number of one that somebody else wrote."""
    ended = execution_attempts.c
    query = select(ended.execution_id, ended.attempt, ended.final)
    there: dict[Any, set[int]] = defaultdict(set)
    has_ended = set()
    for row in await connection.execute(query.where(among(ended.execution_id, [end["execution_id"] for end in ends]))):
        there[row.execution_id].add(row.attempt)
        if row.final:
            has_ended.add(row.execution_id)
    return [
        end | {"attempt": max(numbers) + 1} if end["attempt"] in (numbers := there[end["execution_id"]]) else end
        for end in ends
        if end["execution_id"] not in has_ended
    ]


async def _requeue(connection: AsyncConnection, rows: Sequence[Row[Any]], detail: dict[str, Any]) -> None:
    """Put what a dead worker left back in its queue; what is to run alone, out of the async lane."""
    moves = await to_run_alone(connection, rows)
    lanes = {row.id: "process" if row.id in moves else row.lane for row in rows}
    if rows:
        await connection.execute(_REQUEUE, [{"row": id_, "to_lane": lane} for id_, lane in lanes.items()])
    stayed = [row for row in rows if row.id not in moves]
    moved = [row for row in rows if row.id in moves]
    await _add_events(connection, stayed, "requeue", "recovery", detail)
    await _add_events(connection, moved, "requeue", "recovery", detail | {"lane": "process, to run alone"})


async def _beat(connection: AsyncConnection, boot: str) -> int:
    """The beat of `boot`, which cannot move until this transaction ends; -1 where it has no row."""
    beat = await connection.scalar(select(workers.c.beat).where(workers.c.id == boot).with_for_update())
    return -1 if beat is None else beat


async def _silence(connection: AsyncConnection, boot: str, reason: str) -> str:
    """What is known of the end of a worker."""
    seen = await connection.scalar(select(workers.c.last_seen_at).where(workers.c.id == boot))
    return reason if seen is None else f"its last heartbeat was at {moment(seen)}"


async def _add_events(
    connection: AsyncConnection, rows: Sequence[Row[Any]], kind: str, actor: str, detail: dict[str, Any]
) -> None:
    if rows:
        event = {"kind": kind, "actor": actor, "detail": detail}
        await connection.execute(_ADD_EVENTS, [event | {"execution_id": row.id} for row in rows])


def _loss(row: Row[Any], silence: str) -> Loss:
    return Loss(
        what=f"Worker {row.owner} on {row.hostname} (process {row.pid}) died ({silence})",
        started_at=row.started_at,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        idempotent=row.idempotent,
    )


def _lost(row: Row[Any], loss: Loss) -> dict[str, Any]:
    started = {"started_at": row.started_at, "worker_id": row.owner, "hostname": row.hostname, "pid": row.pid}
    end = _attempt(row, row.attempt, ExecutionStatus.LOST, str(loss), ErrorCode.LOST)
    return end | started | {"final": not loss.may_run_again}


_WAITED_FOR = {QUEUED: "before it started", AWAITING: "before anybody approved it"}


def _cancelled(row: Row[Any], actor: str, reason: str) -> dict[str, Any]:
    when = f"after attempt {row.attempt} of {row.max_attempts}" if row.attempt else _WAITED_FOR[row.status]
    error = f"Cancelled by {actor} {when}" + (f": {reason}" if reason else ".")
    return _attempt(row, row.attempt + 1, ExecutionStatus.CANCELLED, error, ErrorCode.CANCELLED)


def _unclaimable(row: Row[Any]) -> dict[str, Any]:
    if row.cancel_requested_at is not None:
        return _attempt(
            row, row.attempt + 1, ExecutionStatus.CANCELLED, "Cancelled before it could run again.", ErrorCode.CANCELLED
        )
    if row.status == AWAITING:
        error = f"Nobody approved it within {row.expires_in:g} s, so it was not run. Submit it again to ask once more."
        return _attempt(row, row.attempt + 1, ExecutionStatus.REJECTED, error, ErrorCode.EXPIRED)
    if row.attempt >= row.max_attempts:
        error = f"All {row.max_attempts} attempts were used and none of them came to an end."
        return _attempt(row, row.attempt + 1, ExecutionStatus.LOST, error, ErrorCode.LOST)
    error = (
        f"No worker took it from queue '{row.queue}' (lane {row.lane}) within {row.expires_in:g} s. "
        f"Start one: {serving_command(row.queue, row.lane)}"
    )
    return _attempt(row, row.attempt + 1, ExecutionStatus.EXPIRED, error, ErrorCode.EXPIRED)


def _attempt(row: Row[Any], attempt: int, status: ExecutionStatus, error: str, code: ErrorCode) -> dict[str, Any]:
    """A final row without a start."""
    return {
        "execution_id": row.id,
        "attempt": attempt,
        "final": True,
        "status": status.value,
        "worker_id": None,
        "hostname": None,
        "pid": None,
        "started_at": None,
        "error": error,
        "error_code": code.value,
        "metadata": {},
    }


async def to_run_alone(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> set[str]:
    """Which of the rows that a dead worker of the async lane left are to go on in the process lane, as far as it is served."""
    suspects = await _suspects(connection, [row.id for row in rows if row.lane == "async"])
    served = await _served_in_processes(connection) if suspects else {}
    return {row.id for row in rows if row.id in suspects and row.tool_key in served.get(row.queue, ())}


async def _suspects(connection: AsyncConnection, ids: Sequence[str]) -> set[str]:
    """Those that were present at two deaths, of which the one that is being settled may be the second.

    A worker that beat again had only been frozen. One whose neighbours on its host fell silent with it went with the host.
    """
    if not ids:
        return set()
    ended, dead, neighbour = execution_attempts.c, workers.alias().c, workers.alias().c
    outlived = seconds_between(dead.last_seen_at, neighbour.last_seen_at)
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
        .where(among(ended.execution_id, ids), is_death, dead.last_seen_at <= ended.completed_at, has_neighbour)
        .group_by(ended.execution_id)
        .having(func.count() > 1)
    )
    return set(await connection.scalars(found))


async def _served_in_processes(connection: AsyncConnection) -> Mapping[str, set[str]]:
    """The tool keys that live workers of the process lane host, by queue."""
    query = select(workers.c.id, workers.c.queues, workers.c.tools).where(
        workers.c.lane == "process", is_alive(SERVING_SECONDS)
    )
    served: dict[str, set[str]] = {}
    for row in (await connection.execute(query)).all():
        for queue in row.queues:
            served.setdefault(queue, set()).update(hosted_keys(row.tools))
    return served


class Clock:
    """What time it is there. All deadlines are moments of this clock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def now(self) -> float:
        """Unix seconds."""
        async with self._database.reading() as connection:
            return (await database_now(connection)).timestamp()

    async def follow(self, step: float) -> int:
        """Keep what is queued as far from its deadlines as it was before the clock was set by `step` seconds.

        Set forward, nothing expires that had time left; set back, nothing due waits for the old time to come again.
        Rows from before are told by when they came, or come back, into the queue. Returns how many moved.
        """
        statement = _forward(step) if step > 0 else _back(step)
        return (await self._database.write(lambda connection: connection.execute(statement))).rowcount


# When a row came into the queue is its expiry less what it was given; what waits for a retry came when it is due.
_expires_in = seconds_between(from_now(0.0), live.expires_at)
_came_in = _expires_in - live.expires_in
_waiting = update(execution_queue).where(live.status.in_([QUEUED, AWAITING]))


def _forward(step: float) -> Update:
    was_due = live.not_before <= from_now(-step)
    due = case((was_due, live.not_before), else_=_moved(step))
    return _waiting.where(_came_in <= -step / 2).values(not_before=due, expires_at=from_now(_expires_in + step))


def _back(step: float) -> Update:
    return _waiting.where(_came_in > LEAST_LEAD).values(
        not_before=_moved(step), expires_at=from_now(_expires_in + step)
    )


def _moved(step: float) -> from_now:
    return from_now(seconds_between(from_now(0.0), live.not_before) + step)
