"""What hosts and sessions leave behind: rows of boots, shells and bindings that nobody can need any more."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Column, ColumnElement, delete, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import ShellStatus
from forge_tools.storage.engine import Database
from forge_tools.storage.functions import from_now, seconds_between
from forge_tools.storage.models import (
    execution_attempts,
    execution_queue,
    executions,
    session_workspaces,
    shells,
    workers,
    workspaces,
)
from forge_tools.storage.workspaces import KEPT_SECONDS

BOOT_SECONDS = 365 * 86_400.0
"""After that a boot goes even if attempts are kept that it may have run: the longest that its restarts add up."""

BOUND_SECONDS = 90 * 86_400.0
"""For so long a session keeps its workspace without a call that is kept."""

ENDING_SECONDS = 86_400.0

LOOKED_AT = 2_000
"""Rows that one statement looks at: however many there are, none reads or deletes them all."""

PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Kind:
    """Rows of one table that go once they are over, with those that name them."""

    key: Column[str]
    is_over: ColumnElement[bool]
    named_by: Column[str] | None = None


class Remnants:
    """Deletes what is over for so long. Of what may be alive, or is needed to settle it, nothing goes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def clear(self, *, shells_kept: float = 0.0) -> int:
        """Delete all that there is, a small transaction at a time; returns how many rows went.

        `shells_kept` is for how many seconds hosts keep the output of shells that ended: their rows stay as long, at least.
        """
        count = 0
        for kind in _kinds(shells_kept):
            after: str | None = ""
            while after is not None:
                gone, after = await self._step(kind, after)
                count += gone
                await asyncio.sleep(PAUSE_SECONDS)
        return count

    async def _step(self, kind: _Kind, after: str) -> tuple[int, str | None]:
        """Look at the next rows behind `after`; says how many went and where to go on, None at the end."""
        key = kind.key
        window = select(key.label("key")).where(key > after).order_by(key).limit(LOOKED_AT).subquery()
        async with self._database.reading() as connection:
            reach = await connection.scalar(select(func.max(window.c.key)))
            if reach is None:
                return 0, None
            found = select(key).where(key > after, key <= reach, kind.is_over)
            keys = (await connection.scalars(found)).all()
        if not keys:
            return 0, reach

        async def work(connection: AsyncConnection) -> int:
            going = delete(key.table).where(key.in_(keys), kind.is_over).returning(key)
            gone = (await connection.scalars(going)).all()
            if kind.named_by is not None:
                await connection.execute(delete(kind.named_by.table).where(kind.named_by.in_(gone)))
            return len(gone)

        return await self._database.write(work), reach


def _kinds(shells_kept: float) -> Iterator[_Kind]:
    owners = select(execution_queue.c.owner).where(execution_queue.c.owner.is_not(None))
    boot, shell, bound = workers.c, shells.c, session_workspaces.c
    # One that never stopped may only sleep, with everybody who could have found it dead: that comes first.
    has_stopped = (boot.stopped_at < from_now(-KEPT_SECONDS)) & (boot.last_seen_at < from_now(-KEPT_SECONDS))
    oldest = select(func.coalesce(func.min(execution_attempts.c.completed_at), from_now(0.0))).scalar_subquery()
    # No index says who ran what, but nothing is kept from its time. What it left may have ended a while after it.
    is_needless = or_(
        seconds_between(boot.stopped_at, oldest) > ENDING_SECONDS, boot.stopped_at < from_now(-BOOT_SECONDS)
    )
    yield _Kind(boot.id, has_stopped & is_needless & boot.id.not_in(owners), named_by=workspaces.c.boot)
    has_ended = shell.status != ShellStatus.RUNNING.value
    yield _Kind(shell.id, has_ended & (shell.updated_at < from_now(-max(KEPT_SECONDS, shells_kept))))
    # Without its binding, a session that goes on would work elsewhere, and nobody would be told.
    has_calls = exists().where(executions.c.session_id == bound.session_id)
    yield _Kind(bound.session_id, (bound.bound_at < from_now(-BOUND_SECONDS)) & ~has_calls)
