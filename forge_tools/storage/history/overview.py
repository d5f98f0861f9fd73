"""A stack at one moment: who works, what waits or is stuck, how recent calls ended. Only the end of history is read."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Row,
    Select,
    String,
    and_,
    case,
    cast,
    false,
    func,
    null,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.types import Float

from forge_tools.model.diagnosis import Diagnosis
from forge_tools.model.execution import ExecutionStatus
from forge_tools.model.overview import (
    DemotedTool,
    FailedCalls,
    Overview,
    QueueLoad,
    StuckCalls,
    StuckReason,
    WorkerLoad,
)
from forge_tools.model.places import HOST_PREFIX
from forge_tools.model.tools import tool_key
from forge_tools.storage.connection.database import Database, prepare
from forge_tools.storage.functions import database_now, from_now, seconds_between
from forge_tools.storage.history.figures import FAILED, summed
from forge_tools.storage.queue.workers import is_alive, read_workers
from forge_tools.storage.rows import record_of
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import execution_attempts, execution_queue, executions, tools, workers

live, ended = execution_queue.c, execution_attempts.c
QUEUED = live.status == ExecutionStatus.QUEUED.value
RUNNING = live.status == ExecutionStatus.RUNNING.value

MOST_FAILURES = 100


class Overviews:
    """What an operator watches, in a few statements; none reads history further back than asked."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, *, window: float, lease: float, patience: float) -> Overview:
        """Read everything. Figures cover calls ended in the last `window` seconds.

        Calls are stuck, the worst first, that run on a worker silent for a `lease`, or for a lease beyond their time
        limit; or that have been due for `patience` seconds while a worker that serves them has free slots, or while none
        of those that serve their queue hosts the tool.
        """
        async with self._database.reading() as connection:
            now = await database_now(connection)
            since = now - timedelta(seconds=window)
            load = await read_load(connection, patience=patience)
            stuck = await stuck_in(connection, load, lease=lease)
            known = await read_workers(connection, workers.c.stopped_at.is_(None))
            known.sort(key=lambda one: (one.hostname, one.lane, one.queues, one.id))
            running = _running(load)
            at_work = tuple(WorkerLoad(worker=one, running=running[one.id]) for one in known)
            await prepare(connection, "by_index")
            figures = await summed(connection, _keyed_and_all(since))
            return Overview(
                at=now,
                window=window,
                total=next((one for one in figures if one.key is None), None),
                tools=tuple(sorted((one for one in figures if one.key is not None), key=lambda one: -one.calls)),
                failures=await _failures(connection, since),
                workers=at_work,
                queues=_queue_loads(at_work, load, lease),
                stuck=tuple(stuck),
                demoted=await _demoted(connection),
            )


@dataclass(frozen=True, slots=True)
class Load:
    """How many calls of one tool are in one queue and lane, with one status and owner.

    `due` of them could be claimed now, the first since `due_seconds`; `stale` have been due too long. `example` is one
    of these.
    """

    queue: str
    lane: str
    tool_key: str
    status: str
    owner: str | None
    calls: int
    due: int
    due_seconds: float | None
    stale: int
    stale_seconds: float | None
    example: str | None

    @property
    def tool(self) -> str:
        return self.tool_key.rpartition("@")[0]

    @property
    def is_running(self) -> bool:
        return self.status == ExecutionStatus.RUNNING.value


async def read_load(connection: AsyncConnection, *, patience: float) -> list[Load]:
    """Count everything that is queued, runs or waits; what has been due for `patience` seconds is stale."""
    now = await database_now(connection)  # once: SQLite would evaluate it for each row
    since = now - timedelta(seconds=patience)
    is_due = QUEUED & (live.not_before <= now)
    is_stale = and_(
        QUEUED,
        live.not_before <= since,
        live.expires_at > now,
        live.cancel_requested_at.is_(None),
        live.attempt < live.max_attempts,
    )
    kind = (live.queue, live.lane, live.tool_key, live.status, live.owner)
    query = select(
        *kind,
        func.count(),
        func.count(case((is_due, 1))),
        func.min(case((is_due, live.not_before))),
        func.count(case((is_stale, 1))),
        func.min(case((is_stale, live.not_before))),
        func.min(case((is_stale, cast(live.id, String)))),  # PostgreSQL has no min() of a UUID
    ).group_by(*kind)
    found = []
    for row in await connection.execute(query):
        values: list[Any] = [(now - one).total_seconds() if isinstance(one, datetime) else one for one in row]
        found.append(Load(*values))
    return found


async def stuck_in(connection: AsyncConnection, load: Sequence[Load], *, lease: float) -> list[StuckCalls]:
    halted = (await connection.execute(_halted_groups(lease))).all()
    # If somebody else wrote a row without a start time, nobody knows how long it has been stuck.
    found = [
        StuckCalls(**{**row._asdict(), "reason": StuckReason(row.reason), "seconds": row.seconds or 0.0})
        for row in halted
    ]
    stale = [one for one in load if one.stale]
    if stale:
        columns = (workers.c.id, workers.c.lane, workers.c.queues, workers.c.tools, workers.c.concurrency)
        serving = (await connection.execute(select(*columns).where(is_alive(lease)))).all()
        disabled = set(await connection.scalars(select(tools.c.name).where(tools.c.enabled == false())))
        pinned = select(tools.c.name, tools.c.version, tools.c.digest).where(tools.c.pinned_at.is_not(None))
        pins = {row.name: (row.version, row.digest) for row in await connection.execute(pinned)}
        busy = _running(load)
        for one in stale:
            there = [row for row in serving if row.lane == one.lane and one.queue in row.queues]
            if (stuck := _untaken(one, there, busy, disabled, pins.get(one.tool))) is not None:
                found.append(stuck)
    return sorted(found, key=lambda one: -one.seconds)


def _running(load: Sequence[Load]) -> Counter[str | None]:
    busy = Counter[str | None]()
    for one in load:
        busy[one.owner] += one.calls if one.is_running else 0
    return busy


def _halted_groups(lease: float) -> Select[Any]:
    """Count what runs too long, or on a worker that is gone, by place, tool and process."""
    running_for = seconds_between(live.started_at, from_now(0.0))
    is_ownerless = or_(workers.c.id.is_(None), ~is_alive(lease))
    reason = case((is_ownerless, StuckReason.OWNER_GONE.value), else_=StuckReason.OVERDUE.value).label("reason")
    group = (reason, live.queue, live.lane, executions.c.tool, live.hostname, live.pid)
    return (
        select(
            *group,
            func.count().label("count"),
            func.max(running_for).label("seconds"),
            func.min(cast(live.id, String)).label("example"),
        )
        .select_from(execution_queue)
        .join(executions, executions.c.id == live.id)
        .outerjoin(workers, workers.c.id == live.owner)
        .where(RUNNING, or_(is_ownerless, running_for > executions.c.time_limit + lease))
        .group_by(*group)
    )


def _untaken(
    load: Load,
    there: Sequence[Row[Any, Any, Any, Any, Any]],
    busy: Counter[str | None],
    disabled: Collection[str],
    pin: tuple[str, str] | None,
) -> StuckCalls | None:
    """Say why calls are not claimed; None if no slot is free or nobody serves their queue, which is another problem."""
    stuck = StuckCalls(
        reason=StuckReason.NOT_HOSTED,
        queue=load.queue,
        lane=load.lane,
        tool=load.tool,
        count=load.stale,
        seconds=load.stale_seconds or 0.0,
        example=load.example or "",
    )
    if load.tool in disabled:
        return replace(stuck, reason=StuckReason.DISABLED)
    hosting = [row for row in there if load.tool in row.tools]
    able = [row for row in hosting if _can_run(row.tools[load.tool], load, pin)]
    if able:
        has_room = any(row.concurrency > busy[row.id] for row in able)
        return replace(stuck, reason=StuckReason.NOT_TAKEN) if has_room else None
    if hosting:
        wanted = _shown(*pin) if pin and tool_key(load.tool, pin[0]) == load.tool_key else load.tool_key
        hosted = {_shown(*row.tools[load.tool].split(" ", 1)) for row in hosting}
        return replace(stuck, reason=StuckReason.OTHER_VERSION, wanted=wanted, hosted=tuple(sorted(hosted)))
    return stuck if there else None


def _can_run(hosted: str, load: Load, pin: tuple[str, str] | None) -> bool:
    version, _, digest = hosted.partition(" ")
    return tool_key(load.tool, version) == load.tool_key and (pin is None or pin[1] == digest)


def _shown(version: str, digest: str) -> str:
    return f"{version} ({digest})"


def _keyed_and_all(since: datetime) -> Select[Any]:
    """Select the calls that ended, once with their tool as the key and once without.

    Percentiles of all calls do not follow from those of each tool.
    """
    wait = type_coerce(seconds_between(executions.c.queued_at, ended.started_at) * 1000.0, Float)
    calls = (
        select(executions.c.tool.label("key"), ended.status, ended.duration_ms.label("duration"), wait.label("wait"))
        .join(executions, executions.c.id == ended.execution_id)
        .where(ended.completed_at >= since, ended.final)
        .cte("ended")
    )
    unkeyed = select(cast(null(), String), *(calls.c[name] for name in ("status", "duration", "wait")))
    both = select(calls).union_all(unkeyed).subquery()
    return select(both)


async def _failures(connection: AsyncConnection, since: datetime) -> tuple[FailedCalls, ...]:
    kind = (executions.c.tool, ended.status, ended.error_code)
    count = func.count().label("calls")
    query = (
        select(*kind, count, func.max(cast(ended.execution_id, String)).label("example"))
        .join(executions, executions.c.id == ended.execution_id)
        .where(ended.completed_at >= since, ended.final, ended.status.in_([one.value for one in FAILED]))
        .group_by(*kind)
        .order_by(count.desc(), *kind)
        .limit(MOST_FAILURES)
    )
    rows = (await connection.execute(query)).all()
    why = await _whys(connection, [row.example for row in rows])
    return tuple(
        record_of(FailedCalls, row, status=ExecutionStatus(row.status), why=why.get(row.example)) for row in rows
    )


async def _whys(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, str]:
    query = select(ended.execution_id, ended.diagnosis).where(ended.execution_id.in_(ids), ended.final)
    rows = (await connection.execute(query)).all() if ids else []
    return {row.execution_id: found.summary for row in rows if (found := Diagnosis.read(row.diagnosis)) is not None}


async def _demoted(connection: AsyncConnection) -> tuple[DemotedTool, ...]:
    """List demoted definitions still hosted by a worker that has not stopped."""
    rows = (await connection.execute(select(tools).where(tools.c.demoted_at.is_not(None)))).all()
    if not rows:
        return ()
    hosting = select(workers.c.id, workers.c.tools).where(workers.c.stopped_at.is_(None))
    hosted = {
        (name, str(told)) for row in (await connection.execute(hosting)).all() for name, told in row.tools.items()
    }
    return tuple(
        DemotedTool(tool=row.name, version=row.version, reason=row.demoted_reason or "", at=row.demoted_at)
        for row in rows
        if (row.name, f"{row.version} {row.digest}") in hosted
    )


def _queue_loads(known: Sequence[WorkerLoad], load: Sequence[Load], lease: float) -> tuple[QueueLoad, ...]:
    """List each lane of a queue that holds calls, or that is served and does not belong to one host."""
    serving: dict[tuple[str, str], list[WorkerLoad]] = defaultdict(list)
    for one in known:
        if one.worker.silent_seconds <= lease:
            for queue in one.worker.queues:
                serving[queue, one.worker.lane].append(one)
    groups: dict[tuple[str, str], list[Load]] = defaultdict(list)
    for group in load:
        groups[group.queue, group.lane].append(group)
    places = groups.keys() | {place for place in serving if not place[0].startswith(HOST_PREFIX)}
    return tuple(_queue_load(place, groups[place], serving[place]) for place in sorted(places))


def _queue_load(place: tuple[str, str], load: Sequence[Load], serving: Sequence[WorkerLoad]) -> QueueLoad:
    waiting = sum(one.due for one in load)
    running = sum(one.calls for one in load if one.is_running)
    return QueueLoad(
        queue=place[0],
        lane=place[1],
        waiting=waiting,
        later=sum(one.calls for one in load) - waiting - running,
        running=running,
        oldest_seconds=max((one.due_seconds for one in load if one.due_seconds is not None), default=None),
        workers=len(serving),
        slots=sum(one.worker.slots for one in serving),
        free=sum(max(0, one.worker.slots - one.running) for one in serving),
    )
