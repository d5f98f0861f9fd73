"""Calls that do not move though they should: nobody runs them, nobody ends them, or nobody takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, String, cast, false, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import ExecutionStatus, StuckCalls, StuckReason
from forge_tools.storage import alive
from forge_tools.storage.models import execution_queue, executions, from_now, seconds_between, tools, workers

live = execution_queue.c
RUNNING = live.status == ExecutionStatus.RUNNING.value


async def find_stuck(connection: AsyncConnection, *, lease: float, patience: float) -> list[StuckCalls]:
    """Read all of them, grouped, the worst first."""
    is_alive = alive.is_alive(lease)
    running_for = seconds_between(live.started_at, from_now(0.0))
    ownerless = _groups(running_for, live.hostname, live.pid).where(RUNNING, or_(workers.c.id.is_(None), ~is_alive))
    overdue = _groups(running_for, live.hostname, live.pid).where(
        RUNNING, is_alive, running_for > executions.c.time_limit + lease
    )
    untaken = _groups(seconds_between(live.not_before, from_now(0.0)), live.tool_key).where(
        live.status == ExecutionStatus.QUEUED.value,
        live.not_before <= from_now(-patience),
        live.expires_at > from_now(0.0),
        live.cancel_requested_at.is_(None),
        live.attempt < live.max_attempts,
    )
    found = [_stuck(row, StuckReason.OWNER_GONE) for row in await connection.execute(ownerless)]
    found += [_stuck(row, StuckReason.OVERDUE) for row in await connection.execute(overdue)]
    serving = await _serving(connection, is_alive)
    disabled = set(await connection.scalars(select(tools.c.name).where(tools.c.enabled == false())))
    for row in await connection.execute(untaken):
        reason = StuckReason.DISABLED if row.tool in disabled else _why_untaken(row, serving)
        found += [_stuck(row, reason)] if reason else []
    return sorted(found, key=lambda one: -one.seconds)


def _groups(seconds: ColumnElement[float], *columns: ColumnElement[Any]) -> Select[Any]:
    """Count rows that have the same place, tool and `columns`."""
    group = (live.queue, live.lane, executions.c.tool, *columns)
    return (
        select(
            *group,
            func.count().label("calls"),
            func.max(seconds).label("seconds"),
            func.min(cast(live.id, String)).label("example"),
        )
        .select_from(execution_queue)
        .join(executions, executions.c.id == live.id)
        .outerjoin(workers, workers.c.id == live.owner)
        .group_by(*group)
    )


@dataclass(frozen=True, slots=True)
class _Serving:
    lane: str
    queues: tuple[str, ...]
    tool_keys: frozenset[str]
    free: int


async def _serving(connection: AsyncConnection, is_alive: ColumnElement[bool]) -> list[_Serving]:
    """Live workers, with the slots that are free."""
    counts = select(live.owner, func.count()).where(RUNNING).group_by(live.owner)
    busy = dict(tuple(row) for row in await connection.execute(counts))
    columns = (workers.c.id, workers.c.lane, workers.c.queues, workers.c.tools, workers.c.concurrency)
    return [
        _Serving(row.lane, tuple(row.queues), alive.hosted_keys(row.tools), row.concurrency - busy.get(row.id, 0))
        for row in await connection.execute(select(*columns).where(is_alive))
    ]


def _why_untaken(row: Row[Any], serving: Sequence[_Serving]) -> StuckReason | None:
    """Nothing is stuck in a queue that nobody serves, which is another trouble, or where all slots are taken."""
    there = [one for one in serving if one.lane == row.lane and row.queue in one.queues]
    able = [one for one in there if row.tool_key in one.tool_keys]
    if there and not able:
        return StuckReason.NOT_HOSTED
    return StuckReason.NOT_TAKEN if any(one.free > 0 for one in able) else None


def _stuck(row: Row[Any], reason: StuckReason) -> StuckCalls:
    return StuckCalls(
        reason=reason,
        queue=row.queue,
        lane=row.lane,
        tool=row.tool,
        count=row.calls,
        seconds=row.seconds,
        example=row.example,
        hostname=getattr(row, "hostname", None),
        pid=getattr(row, "pid", None),
    )
