"""The rows of shells: what their hosts last reported, readable from every host."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, case, or_, select, update

from forge_tools.model.places import ShellRecord, ShellStatus
from forge_tools.storage import tables
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import from_now
from forge_tools.storage.queue.workers import beat_within
from forge_tools.storage.rows import clean, named_values, record_of
from forge_tools.storage.sqlalchemy_tables import shells, workers

MOST_LISTED = 500
"""How many shells of one session are listed: running ones come before ended ones."""

kept = shells.c
RUNNING = kept.status == ShellStatus.RUNNING.value
LOST = kept.status == ShellStatus.LOST.value


class Shells:
    """A shell's host is believed, but the first end that was reported stays.

    Only LOST may be taken back, by the host itself: it means that nobody could know how the shell ended.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, shell: ShellRecord) -> None:
        await self.record_many([shell])

    async def record_many(self, seen: Sequence[ShellRecord]) -> None:
        """Write what a host has seen of its shells, in one transaction."""
        if not seen:
            return
        row = self._database.upsert(shells).values(updated_at=from_now(0.0))
        said = row.excluded
        grown = case((said.size > kept.size, said.size), else_=kept.size)
        news = {"size": grown, "updated_at": from_now(0.0)}
        for name in ("status", "kernel", "pid", "start_ticks", "exit_code", "signal", "ended_at"):
            news[name] = said[name]
        statement = row.on_conflict_do_update(index_elements=["id"], set_=news, where=or_(RUNNING, LOST))
        values = [_values(shell) for shell in sorted(seen, key=lambda shell: shell.id)]  # or two hosts could deadlock
        await self._database.execute(statement, values)

    async def find(self, id: str) -> ShellRecord | None:
        """Read one shell; None if no host has written it."""
        found = await self._read(select(shells).where(kept.id == clean(id)))
        return found[0] if found else None

    async def of_session(self, session_id: str | None) -> list[ShellRecord]:
        """List a session's shells on all hosts, the oldest first; of too many, those that run or started last."""
        of_it = kept.session_id.is_(None) if session_id is None else kept.session_id == clean(session_id)
        latest = select(shells).where(of_it).order_by(kept.started_at.desc(), kept.id).limit(MOST_LISTED)
        found = await self._read(latest)
        if len(found) == MOST_LISTED:
            running = await self._read(latest.where(RUNNING))  # separately, or all that ever ended would be sorted
            is_listed = {shell.id for shell in running}
            found = [*running, *(shell for shell in found if shell.id not in is_listed)][:MOST_LISTED]
        return sorted(found, key=lambda shell: (shell.started_at, shell.id))

    async def running_of(self, hostname: str) -> list[ShellRecord]:
        return await self._read(select(shells).where(RUNNING, kept.hostname == hostname))

    async def mark_lost(self, ids: Collection[str]) -> list[str]:
        """Mark shells as lost: nobody knows how they ended. Returns those that were running."""
        return await self._lose(kept.id.in_(ids)) if ids else []

    async def deserted_hosts(self, seconds: float) -> set[str]:
        """Return hosts with shells reported as running, and no worker seen for `seconds`."""
        query = select(kept.hostname).where(RUNNING, _is_deserted(seconds)).distinct()
        return set(await self._database.scalars(query))

    async def desert(self, hostnames: Collection[str], seconds: float) -> list[str]:
        """Mark running shells on those hosts as lost, if still no worker was seen there for `seconds`."""
        return await self._lose(kept.hostname.in_(hostnames), _is_deserted(seconds)) if hostnames else []

    async def _read(self, query: Select[Any]) -> list[ShellRecord]:
        rows = await self._database.rows(query)
        return [record_of(ShellRecord, row, status=ShellStatus(row.status)) for row in rows]

    async def _lose(self, *which: ColumnElement[bool]) -> list[str]:
        lost = (
            update(shells)
            .where(RUNNING, *which)
            .values(status=ShellStatus.LOST.value, updated_at=from_now(0.0))
            .returning(kept.id)
        )
        return sorted(await self._database.write(lambda connection: connection.scalars(lost)))


def _is_deserted(seconds: float) -> ColumnElement[bool]:
    """Whether no worker of the host, stopped or not, was seen for `seconds`."""
    return kept.hostname.not_in(select(workers.c.hostname).where(beat_within(seconds)))


_values = named_values(tables.shells, ShellRecord)
