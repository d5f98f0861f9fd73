"""The public halves of the keys that clients encrypt parameters with."""

import base64
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Select, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.errors import ConfigurationError
from forge_tools.model import EncryptionKey
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import from_now
from forge_tools.storage.tables import encryption_keys, execution_queue

known = encryption_keys.c


class EncryptionKeys:
    """Clients use the newest key that is not retired; what was encrypted with another one is decrypted all the same."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, id: str, public: bytes) -> None:
        """Have clients encrypt with this key from now on. Publishing it again changes nothing."""
        row = {"id": id, "public": base64.b64encode(public).decode(), "created_at": from_now(0.0)}
        statement = self._database.upsert(encryption_keys).values(row).on_conflict_do_nothing()
        await self._database.execute(statement)

    async def list(self) -> list[EncryptionKey]:
        """All keys, the newest first, with the number of executions under way that each is needed for."""
        async with self._database.reading() as connection:
            rows = (await connection.execute(_newest_first())).all()
            return [_key(row, await _live(connection, row.id)) for row in rows]

    async def retire(self, ids: Sequence[str]) -> None:
        """Have clients use these no more; workers go on decrypting what was encrypted with them."""
        retired = update(encryption_keys).where(known.id.in_(ids), known.retired_at.is_(None))
        await self._database.execute(retired.values(retired_at=from_now(0.0)))

    async def forget(self, id: str) -> None:
        """Delete a key that is retired and that nothing under way needs.

        Raises:
            ConfigurationError: it is neither, and why.
        """

        async def work(connection: AsyncConnection) -> None:
            in_use = select(known.id).where(known.id == id, known.retired_at.is_(None))
            if await connection.scalar(in_use) is not None:
                raise ConfigurationError(f"Key {id} is in use. Retire it first: forge-tools keys retire {id}")
            if live := await _live(connection, id):
                raise ConfigurationError(
                    f"{live:,} calls under way are encrypted with key {id}. Wait until they are over."
                )
            await connection.execute(delete(encryption_keys).where(known.id == id))

        await self._database.write(work)


def _newest_first() -> Select[Any]:
    return select(encryption_keys).order_by(known.created_at.desc(), known.id)


def _key(row: Row[Any], live: int = 0) -> EncryptionKey:
    return EncryptionKey(row.id, base64.b64decode(row.public), row.created_at, row.retired_at, live)


async def _live(connection: AsyncConnection, id: str) -> int:
    """How many calls under way need it: what is encrypted begins with the version of its form and the id of its key."""
    needed = select(func.count()).select_from(execution_queue).where(execution_queue.c.encrypted.like(f"%.{id}.%"))
    return int(await connection.scalar(needed) or 0)
