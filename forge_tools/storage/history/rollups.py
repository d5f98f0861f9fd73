"""Counts whole hours of calls once, so that figures of a day or a month are read quickly.

An hour is counted some time after its end, when all calls queued in it have ended: from then on only pruning changes
it, and the pruning transaction marks it. Counting takes no lock: it leaves a token in the row of the hour, reads, and
writes only if the token is still there.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import takewhile
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, delete, insert, select, update

from forge_tools.model.execution import ExecutionStatus, id_floor, id_time, is_id, new_id
from forge_tools.model.history import Grouping, Selection
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import database_now, from_now
from forge_tools.storage.history.figures import (
    COLUMNS,
    HOUR,
    SETS,
    Tallies,
    Tally,
    count,
    figures,
    hours,
    is_rolled_up,
    measured,
    open_up,
)
from forge_tools.storage.history.view import asked, id_bounds, time_bounds
from forge_tools.storage.rows import MAX_SKEW
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import execution_queue, executions, in_form, rollup_figures, rollup_hours

SETTLED_SECONDS = 300.0
"""How long ago an hour must have ended to be counted: all calls queued in it are committed by then."""

REACH = timedelta(days=400)
"""Earlier hours are read call by call, so that a clock that was once wrong does not cause work for ever."""

SKEW = timedelta(seconds=MAX_SKEW)

WRITTEN = 50
"""How many rows of figures one statement writes."""

_WRITE = insert(rollup_figures).returning(figures.number)
"""With RETURNING, many rows are one statement; a cancelled `executemany` of asyncpg would first await its timeout."""


class Rollups:
    """Keeps the figures of whole hours. It is safe for two processes to do so at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sweep(self) -> AsyncIterator[datetime]:
        """Roll up each hour that is ready and not rolled up, the newest first; drop those that no longer count."""
        async with self._database.reading() as connection:
            settled = await database_now(connection, -SETTLED_SECONDS)
            oldest = await connection.scalar(select(executions.c.id).order_by(executions.c.id).limit(1))
        first = hour_at(min(settled, settled if oldest is None else _time_of(oldest) - SKEW))
        await self._drop_stale(first)
        missing = await self._missing(max(first, hour_at(settled) - REACH), hour_at(settled))
        while missing:
            reach = await self._last_call_before(missing[0] + HOUR)
            if empty := list(missing if reach is None else takewhile(reach.__lt__, missing)):
                await self._database.write(partial(_let_be_empty, self._database, empty))
            elif await self.roll(missing[0]):
                yield missing[0]
            missing = missing[len(empty) or 1 :]

    async def roll(self, hour: datetime) -> bool:
        """Count the calls of one hour. False, to retry later, if it or a call is not over, or calls were pruned."""
        within, token, dialect = Selection(since=hour, until=hour + HOUR), new_id(), self._database.dialect
        if await self._is_anything_live(within):
            return False
        await self._database.write(partial(_write_hours, self._database, [hour], token=token))
        groups = await self._counted(within)
        calls = sum(group.calls for group in groups.values())
        # On a thread: for 200,000 calls it would block the loop, and the writers of an SQLite file, for a second.
        rows = await asyncio.to_thread(lambda: [row for one in SETS for row in _rows(one, hour, groups, dialect)])

        async def work(connection: AsyncConnection) -> bool:
            is_mine, is_over = (hours.hour == hour) & (hours.token == token), from_now(-SETTLED_SECONDS) >= hour + HOUR
            known = {"token": None, "rolled_at": from_now(0.0), "calls": calls}
            if not (await connection.execute(update(rollup_hours).where(is_mine, is_over).values(known))).rowcount:
                return False
            await connection.execute(delete(rollup_figures).where(_is_of_sets(), figures.hour == hour))
            for start in range(0, len(rows), WRITTEN):
                await connection.execute(_WRITE, rows[start : start + WRITTEN])
            return True

        return await self._database.write(work)

    async def _counted(self, within: Selection) -> Tallies:
        groups: Tallies = Tallies(Tally)
        query = measured(within, *(asked.c[name] for name in COLUMNS))
        async with self._database.reading(is_long=True) as connection:
            await open_up(connection, within)
            await count(connection, query, itemgetter(slice(len(COLUMNS))), groups)
        return groups

    async def _is_anything_live(self, within: Selection) -> bool:
        live = execution_queue.join(asked, asked.c.id == execution_queue.c.id)
        bounds = *id_bounds(within, execution_queue.c.id), *time_bounds(within)
        query = select(asked.c.id).select_from(live).where(*bounds)
        return await self._database.scalar(query.limit(1)) is not None

    async def _missing(self, first: datetime, end: datetime) -> list[datetime]:
        """List the hours from `first` to `end` that are not rolled up, the newest first."""
        query = select(hours.hour).where(hours.hour >= first, is_rolled_up())
        known = set(await self._database.scalars(query))
        every = (end - number * HOUR for number in range(1, (end - first) // HOUR + 1))
        return [hour for hour in every if hour not in known]

    async def _last_call_before(self, end: datetime) -> datetime | None:
        """Return the latest time when a call before `end` may have been queued, by its id; None if there is no call."""
        bound = executions.c.id < id_floor(max(0.0, (end + SKEW).timestamp()))
        id_ = await self._database.scalar(
            select(executions.c.id).where(bound).order_by(executions.c.id.desc()).limit(1)
        )
        return None if id_ is None else _time_of(id_) + SKEW

    async def _drop_stale(self, first: datetime) -> None:
        async def work(connection: AsyncConnection) -> None:
            await connection.execute(delete(rollup_figures).where(_is_of_sets(), figures.hour < first))
            await connection.execute(delete(rollup_hours).where((hours.hour < first) | ~is_rolled_up()))

        await self._database.write(work)


async def unroll(database: Database, connection: AsyncConnection, moments: Iterable[datetime]) -> None:
    """Mark the hours of calls to be counted again: the first step of a transaction that deletes these."""
    await _write_hours(database, sorted(set(map(hour_at, moments))), connection)


def _time_of(id_: str) -> datetime:
    """Return when an execution was queued, by its id; 1970 if that is not an id."""
    moment = id_time(id_) if is_id(id_) else 0.0
    return datetime.fromtimestamp(moment, UTC)


def hour_at(moment: datetime) -> datetime:
    """Return the beginning of the hour that contains a moment, in UTC."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


async def _let_be_empty(database: Database, empty: Sequence[datetime], connection: AsyncConnection) -> None:
    """Roll up hours without calls, the latest first; there are no calls between them either."""
    await connection.execute(delete(rollup_figures).where(_is_of_sets(), figures.hour.between(empty[-1], empty[0])))
    await _write_hours(database, empty[::-1], connection, rolled_at=from_now(0.0), calls=0)


async def _write_hours(
    database: Database, every: Sequence[datetime], connection: AsyncConnection, **known: Any
) -> None:
    """Write what is `known` of hours: those without it no longer count, and only a token's owner may roll them up.

    All writers lock hours in order.
    """
    values = dict.fromkeys(("token", "rolled_at", "calls")) | known
    upsert = database.upsert(rollup_hours).on_conflict_do_update(index_elements=["hour"], set_=values)
    if every:
        await connection.execute(upsert.values(values), [{"hour": hour} for hour in every])


def _is_of_sets() -> ColumnElement[bool]:
    """Return a condition on the first column of the primary key, so that the key is used."""
    return figures.grouped_by.in_([one.value for one in SETS])


def _rows(
    grouped_by: Grouping, hour: datetime, groups: Mapping[tuple[Any, ...], Tally], dialect: str
) -> Iterator[dict[str, Any]]:
    names = SETS[grouped_by]
    places = [COLUMNS.index(name) for name in names]
    together: Tallies = Tallies(Tally)
    for key, group in groups.items():
        together[tuple(key[place] for place in places)].add(group)
    for number, (key, group) in enumerate(together.items()):
        yield {
            "grouped_by": grouped_by.value,
            "hour": hour,
            "number": number,
            **dict.fromkeys(COLUMNS),
            **dict(zip(names, key, strict=True)),
            "calls": group.calls,
            "succeeded": group.ends[ExecutionStatus.SUCCEEDED],
            "failed": group.failed,
            "rejected": group.ends[ExecutionStatus.REJECTED],
            "durations": in_form(group.durations, dialect),
            "waits": in_form(group.waits, dialect),
        }
