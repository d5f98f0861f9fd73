"""Calls that may be what ended their workers, and where they can run without harm to others."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import ExecutionStatus
from forge_tools.storage import alive
from forge_tools.storage.functions import among, seconds_between
from forge_tools.storage.models import execution_attempts, workers

SERVING_SECONDS = 15.0
"""A worker silent for longer may be dead, and is sent nothing that only it could run."""


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
        workers.c.lane == "process", alive.is_alive(SERVING_SECONDS)
    )
    served: dict[str, set[str]] = {}
    for row in (await connection.execute(query)).all():
        for queue in row.queues:
            served.setdefault(queue, set()).update(alive.hosted_keys(row.tools))
    return served
