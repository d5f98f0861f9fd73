"""What is not over, counted in a pass over the queue: no index may say who runs what, for a claim would have to change it."""

from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import add, sub
from typing import Any

from sqlalchemy import Select, String, TextualSelect, and_, bindparam, case, cast, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import ExecutionStatus
from forge_tools.storage.columns import Moment
from forge_tools.storage.functions import from_now
from forge_tools.storage.models import execution_queue
from forge_tools.storage.statements import sqlite_statement

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
    since = now - timedelta(seconds=patience)
    if connection.dialect.name == "sqlite":
        return await _read_on_sqlite(connection, now, since)
    return [_load(now, *row) for row in await connection.execute(_grouped(now, since))]


def _grouped(now: datetime, since: datetime) -> Select[Any]:
    is_due = QUEUED & (live.not_before <= now)
    is_stale = and_(
        QUEUED,
        live.not_before <= since,
        live.expires_at > now,
        live.cancel_requested_at.is_(None),
        live.attempt < live.max_attempts,
    )
    kind = (live.queue, live.lane, live.tool_key, live.status, live.owner)
    return select(
        *kind,
        func.count(),
        func.count(case((is_due, 1))),
        func.min(case((is_due, live.not_before))),
        func.count(case((is_stale, 1))),
        func.min(case((is_stale, live.not_before))),
        func.min(case((is_stale, cast(live.id, String)))),
    ).group_by(*kind)


def _load(now: datetime, *row: Any) -> Load:
    """The moments of a row as seconds until now."""
    values: list[Any] = [(now - value).total_seconds() if isinstance(value, datetime) else value for value in row]
    return Load(*values)


async def _read_on_sqlite(connection: AsyncConnection, now: datetime, since: datetime) -> list[Load]:
    others, places = [
        (await connection.execute(_typed(statement), {"now": now, "since": since})).all()
        for statement in ("load_of_others", "load_of_places")
    ]
    found = dict[tuple[str | None, ...], Load]()
    apart: dict[tuple[str | None, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in others:
        queued = (row.due, row.first) if row.status == ExecutionStatus.QUEUED.value else (0, None)
        found[row[:5]] = _load(now, *row[:6], *queued, 0, None, None)
        apart[row[:3]] = list(map(add, apart[row[:3]], (row.calls, row.due, row.stale)))
    for row in places:
        calls, due, stale = map(sub, (row.calls, row.due, row.stale), apart[row[:3]])
        if calls:
            is_stale = (stale, row.first, row.example) if stale else (0, None, None)
            one = _load(now, *row[:3], ExecutionStatus.QUEUED.value, None, calls, due, row.first, *is_stale)
            same = (*row[:3], one.status, None)
            found[same] = _both(one, found[same]) if same in found else one
    return list(found.values())


def _typed(name: str) -> TextualSelect:
    moments = (bindparam(name, type_=Moment) for name in ("now", "since"))
    return text(sqlite_statement(name)).bindparams(*moments).columns(first=Moment)


def _both(one: Load, queued: Load) -> Load:
    """Together with those of the same place that wait in vain, and are never stale."""
    waits = [load.due_seconds for load in (one, queued) if load.due_seconds is not None]
    return replace(one, calls=one.calls + queued.calls, due=one.due + queued.due, due_seconds=max(waits, default=None))
