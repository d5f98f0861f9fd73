"""A stack at one moment: who works, what waits, how calls of the last seconds ended. History is read from its end alone."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, String, cast, func, null, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import Float

from forge_tools.records import (
    DemotedTool,
    ExecutionStatus,
    FailedCalls,
    Overview,
    QueueLoad,
    WorkerLoad,
    WorkerRecord,
)
from forge_tools.records.places import HOST_PREFIX
from forge_tools.storage.engine import Database
from forge_tools.storage.figures import FAILED, summed
from forge_tools.storage.functions import database_now, seconds_between
from forge_tools.storage.load import Load, read_load, stuck_among
from forge_tools.storage.models import execution_attempts, executions, tools, workers
from forge_tools.storage.statements import prepare
from forge_tools.storage.workers import boots, read_workers

MOST_FAILURES = 100

ended = execution_attempts.c


class Overviews:
    """What an operator watches, in a few statements, none of which reads history further back than it is asked for."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, *, window: float, lease: float, patience: float) -> Overview:
        """Look once. Figures are of calls that ended in the last `window` seconds; `lease` and `patience` as for stuck calls."""
        async with self._database.reading() as connection:
            now = await database_now(connection)
            since = now - timedelta(seconds=window)
            load = await read_load(connection, patience=patience)
            stuck = await stuck_among(connection, load, lease=lease)
            known = await read_workers(connection, boots.stopped_at.is_(None))
            at_work = _worker_loads(known, load)
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


def _keyed_and_all(since: datetime) -> Select[Any]:
    """What ended, once with its tool as the key and once without."""
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
        .where(
            ended.completed_at >= since,
            ended.final,
            ended.status.in_([one.value for one in FAILED]),
        )
        .group_by(*kind)
        .order_by(count.desc(), *kind)
        .limit(MOST_FAILURES)
    )
    rows = (await connection.execute(query)).mappings()
    return tuple(FailedCalls(**{**row, "status": ExecutionStatus(row["status"])}) for row in rows)


async def _demoted(connection: AsyncConnection) -> tuple[DemotedTool, ...]:
    """Those that a worker which has not stopped hosts in that very definition."""
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


def _worker_loads(known: Sequence[WorkerRecord], load: Sequence[Load]) -> tuple[WorkerLoad, ...]:
    running: dict[str | None, int] = defaultdict(int)
    for one in load:
        running[one.owner] += one.calls if one.is_running else 0
    found = sorted(known, key=lambda one: (one.hostname, one.lane, one.queues, one.id))
    return tuple(WorkerLoad(worker=one, running=running[one.id]) for one in found)


def _queue_loads(known: Sequence[WorkerLoad], load: Sequence[Load], lease: float) -> tuple[QueueLoad, ...]:
    """Each lane of a queue where something is, or that is served and not a host's own."""
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
