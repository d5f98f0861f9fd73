"""What is not over, counted in one pass over the queue: no index may say who runs what, for a claim would have to change it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import String, and_, case, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import ExecutionStatus
from forge_tools.storage.models import execution_queue, from_now

live = execution_queue.c
QUEUED = live.status == ExecutionStatus.QUEUED.value
RUNNING = live.status == ExecutionStatus.RUNNING.value


@dataclass(frozen=True, slots=True)
class Load:
    """Calls of one kind at one place in one status.

    `due` of them could be claimed now, the first since `due_seconds`; `stale` have been for so long that they should be. `example`
    is one of these.
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
    """Count everything that is queued, runs or waits; what is due for `patience` seconds is stale."""
    now = (await connection.execute(select(from_now(0.0)))).scalar_one()  # once: SQLite would ask again for each row
    is_due = QUEUED & (live.not_before <= now)
    is_stale = and_(
        QUEUED,
        live.not_before <= now - timedelta(seconds=patience),
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
        func.min(case((is_stale, cast(live.id, String)))),
    ).group_by(*kind)
    return [_load(now, *row) for row in await connection.execute(query)]


def _load(now: datetime, *row: Any) -> Load:
    """The moments of a row as seconds until now."""
    values: list[Any] = [(now - value).total_seconds() if isinstance(value, datetime) else value for value in row]
    return Load(*values)
