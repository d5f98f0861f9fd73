"""What is not over, counted in one pass, and what of it does not move though it should."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import add, sub
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    String,
    TextualSelect,
    and_,
    bindparam,
    case,
    cast,
    false,
    func,
    or_,
    select,
    text,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import ExecutionStatus, StuckCalls, StuckReason
from forge_tools.records.tools import tool_key
from forge_tools.storage import alive
from forge_tools.storage.columns import Moment
from forge_tools.storage.functions import from_now, seconds_between
from forge_tools.storage.models import execution_queue, executions, tools, workers
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


async def find_stuck(connection: AsyncConnection, *, lease: float, patience: float) -> list[StuckCalls]:
    """Read all of them, grouped, the worst first."""
    return await stuck_among(connection, await read_load(connection, patience=patience), lease=lease)


async def stuck_among(connection: AsyncConnection, load: Sequence[Load], *, lease: float) -> list[StuckCalls]:
    """Those of a `load` that was read before, grouped, the worst first."""
    is_alive = alive.is_alive(lease)
    halted = (await connection.execute(_halted_groups(is_alive, lease))).all()
    found = [StuckCalls(**_told(row)) for row in halted if isinstance(row.tool, str)]
    stale = [one for one in load if one.stale]
    if stale:
        serving = await _serving(connection, is_alive, load)
        rules = await _rules(connection)
        found += [stuck for one in stale if (stuck := _untaken(one, serving, rules)) is not None]
    return sorted(found, key=lambda one: -one.seconds)


def _told(row: Row[Any]) -> dict[str, Any]:
    """A group as what is stuck; of one that somebody else gave no time to start at, nobody knows since when."""
    return {**row._asdict(), "reason": StuckReason(row.reason), "seconds": row.seconds or 0.0}


def _halted_groups(is_alive: ColumnElement[bool], lease: float) -> Select[Any]:
    """Count what runs on nobody, or too long, by place, tool and process."""
    running_for = seconds_between(live.started_at, from_now(0.0))
    is_ownerless = or_(workers.c.id.is_(None), ~is_alive)
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


@dataclass(frozen=True, slots=True)
class _Serving:
    lane: str
    queues: tuple[str, ...]
    tools: Mapping[str, str]
    free: int


async def _serving(connection: AsyncConnection, is_alive: ColumnElement[bool], load: Sequence[Load]) -> list[_Serving]:
    """Live workers, with the slots that are free."""
    busy = Counter[str | None]()
    for one in load:
        busy[one.owner] += one.calls if one.status == ExecutionStatus.RUNNING else 0
    columns = (workers.c.id, workers.c.lane, workers.c.queues, workers.c.tools, workers.c.concurrency)
    return [
        _Serving(row.lane, tuple(row.queues), row.tools, row.concurrency - busy[row.id])
        for row in (await connection.execute(select(*columns).where(is_alive))).all()
    ]


class _Rules(NamedTuple):
    """The names of disabled tools, and (version, digest) of what each pinned one is pinned to."""

    disabled: frozenset[str]
    pins: Mapping[str, tuple[str, str]]


async def _rules(connection: AsyncConnection) -> _Rules:
    columns = (tools.c.name, tools.c.version, tools.c.digest)
    pinned = await connection.execute(select(*columns).where(tools.c.pinned_at.is_not(None)))
    disabled = await connection.scalars(select(tools.c.name).where(tools.c.enabled == false()))
    return _Rules(frozenset(disabled), {row.name: (row.version, row.digest) for row in pinned})


def _untaken(load: Load, serving: Sequence[_Serving], rules: _Rules) -> StuckCalls | None:
    """Nothing is stuck in a queue that nobody serves, which is another trouble, or where all slots are taken."""
    stuck = StuckCalls(
        reason=StuckReason.DISABLED,
        queue=load.queue,
        lane=load.lane,
        tool=load.tool,
        count=load.stale,
        seconds=load.stale_seconds or 0.0,
        example=load.example or "",
    )
    if load.tool in rules.disabled:
        return stuck
    there = [one for one in serving if one.lane == load.lane and load.queue in one.queues]
    pin = rules.pins.get(load.tool)
    able = [one for one in there if _can_run(one.tools.get(load.tool), load, pin)]
    if able:
        return replace(stuck, reason=StuckReason.NOT_TAKEN) if any(one.free > 0 for one in able) else None
    hosted = {one.tools[load.tool] for one in there if load.tool in one.tools}
    if hosted:
        wanted = _shown(*pin) if pin and tool_key(load.tool, pin[0]) == load.tool_key else load.tool_key
        shown = tuple(sorted(_shown(*text.split(" ", 1)) for text in hosted))
        return replace(stuck, reason=StuckReason.OTHER_VERSION, wanted=wanted, hosted=shown)
    return replace(stuck, reason=StuckReason.NOT_HOSTED) if there else None


def _can_run(hosted: str | None, load: Load, pin: tuple[str, str] | None) -> bool:
    if hosted is None:
        return False
    version, _, digest = hosted.partition(" ")
    return tool_key(load.tool, version) == load.tool_key and (pin is None or pin[1] == digest)


def _shown(version: str, digest: str) -> str:
    return f"{version} ({digest})"
