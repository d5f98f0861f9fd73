"""The public halves of sealing keys, from which clients learn what to seal with."""

import base64
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.errors import ConfigurationError
from forge_tools.records import SealingKey
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import from_now
from forge_tools.storage.models import execution_queue, sealing_keys

known = sealing_keys.c


class SealingKeys:
    """Clients use the newest key that is not retired; what is sealed with another one is opened all the same."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, id: str, public: bytes) -> None:
        """Have clients seal with this key from now on. Publishing it again changes nothing."""
        statement = self._database.upsert(sealing_keys).on_conflict_do_nothing()
        row = {"id": id, "public": base64.b64encode(public).decode(), "created_at": from_now(0.0)}

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(statement.values(row))

        await self._database.write(work)

    async def current(self) -> SealingKey | None:
        """The key that clients seal with; None where there is none."""
        newest = _keys().where(known.retired_at.is_(None)).order_by(known.created_at.desc(), known.id).limit(1)
        async with self._database.reading() as connection:
            row = (await connection.execute(newest)).one_or_none()
        return None if row is None else _key(row)

    async def list(self) -> list[SealingKey]:
        """All keys, the newest first, with the number of executions under way that each is needed for."""
        async with self._database.reading() as connection:
            rows = (await connection.execute(_keys().order_by(known.created_at.desc(), known.id))).all()
            live = {row.id: await _live(connection, row.id) for row in rows}
        return [_key(row, live[row.id]) for row in rows]

    async def retire(self, ids: Sequence[str]) -> None:
        """Have clients use these no more; workers go on opening what was sealed with them."""
        retired = update(sealing_keys).where(known.id.in_(ids), known.retired_at.is_(None))
        await self._database.write(lambda connection: connection.execute(retired.values(retired_at=from_now(0.0))))

    async def forget(self, id: str) -> None:
        """Delete a key that is retired and that nothing under way needs.

        Raises:
            ConfigurationError: it is neither, and why.
        """

        async def work(connection: AsyncConnection) -> None:
            row = (await connection.execute(_keys().where(known.id == id))).one_or_none()
            if row is not None and row.retired_at is None:
                raise ConfigurationError(f"Key {id} is in use. Retire it first: forge-tools keys retire {id}")
            if live := await _live(connection, id):
                raise ConfigurationError(
                    f"{live:,} calls under way are sealed with key {id}. Wait until they are over."
                )
            await connection.execute(delete(sealing_keys).where(known.id == id))

        await self._database.write(work)


def _keys() -> Select[Any]:
    return select(known.id, known.public, known.created_at, known.retired_at)


def _key(row: Row[Any], live: int = 0) -> SealingKey:
    return SealingKey(row.id, base64.b64decode(row.public), row.created_at, row.retired_at, live)


async def _live(connection: AsyncConnection, id: str) -> int:
    count = select(func.count()).select_from(execution_queue).where(_is_sealed_with(id))
    return int(await connection.scalar(count) or 0)


def _is_sealed_with(id: str) -> ColumnElement[bool]:
    """What is sealed begins with the version of its form and the id of its key."""
    return execution_queue.c.sealed.like(f"%.{id}.%")
