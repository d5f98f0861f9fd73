"""The rows of artifacts: written part by part, seen only when whole, shared by all whose bytes are the same."""

import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from sqlalchemy import ColumnElement, Row, case, delete, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.errors import ArtifactNotFoundError, StorageError
from forge_tools.records import Artifact
from forge_tools.records.artifacts import SCHEME
from forge_tools.storage.artifact_tables import artifact_owners, artifact_parts, artifacts
from forge_tools.storage.engine import Database
from forge_tools.storage.models import from_now
from forge_tools.storage.rows import clean

PART_BYTES = 256 << 10
"""Bytes of an artifact in one part, before it is compressed."""

UPLOAD_SECONDS = 3600.0
"""After so long without a further part, what is not whole is a leftover."""

_LEVEL = 1  # a third of the time of the default for a tenth more bytes

kept, part, owner = artifacts.c, artifact_parts.c, artifact_owners.c


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long an artifact stays, in seconds, and how many bytes a session may hold."""

    ttl: float
    quota: int


def pack(data: bytes) -> bytes:
    """Compress one part."""
    return zlib.compress(data, _LEVEL)


def unpack(data: bytes) -> bytes:
    """Return what one part holds; no more than a part may hold, whoever wrote it.

    Raises:
        StorageError: it is damaged.
    """
    try:
        return zlib.decompressobj().decompress(data, PART_BYTES)
    except zlib.error as error:
        raise StorageError(f"A part of an artifact is damaged: {error}") from error


def count_parts(size: int) -> int:
    """How many parts so many bytes are in."""
    return -(-size // PART_BYTES)


class StoredArtifacts:
    """Begin, add the parts in any order, finish. Who is killed in between leaves nothing that anybody could see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, new: Artifact, keeping: Keeping, *, must_own: bool = False) -> Artifact | None:
        """Announce an artifact. If its bytes are here already it is kept for longer and returned: nothing is left to do.

        With `must_own` that goes for sessions only that have kept it before: an id alone proves nothing.
        """
        mine = select(owner.size).where(owner.artifact_id == new.id, owner.session_key == session_key(new.session_id))
        announced = (
            self._database.upsert(artifacts)
            .values(
                id=new.id,
                size=new.size,
                media_type=clean(new.media_type),
                is_whole=False,
                created_at=from_now(0.0),
                expires_at=from_now(UPLOAD_SECONDS),
            )
            .on_conflict_do_update(index_elements=["id"], set_={"expires_at": _lasting(keeping, UPLOAD_SECONDS)})
            .returning(artifacts)
        )

        async def work(connection: AsyncConnection) -> Artifact | None:
            row = (await connection.execute(announced)).one()
            if not row.is_whole or (must_own and await connection.scalar(mine) is None):
                return None
            return await self._own(connection, row, new)

        return await self._evicting(await self._database.write(work), keeping)

    async def add(self, id: str, number: int, data: bytes) -> bool:
        """Store one packed part. False if it is no longer waited for: somebody else finished, or it was given up."""
        waiting = update(artifacts).where(kept.id == id, ~kept.is_whole).values(expires_at=from_now(UPLOAD_SECONDS))
        row = self._database.upsert(artifact_parts).values(
            artifact_id=id, number=number, start=number * PART_BYTES, data=data
        )
        latest = row.on_conflict_do_update(index_elements=["artifact_id", "number"], set_={"data": data})

        async def work(connection: AsyncConnection) -> bool:
            if not (await connection.execute(waiting)).rowcount:
                return False
            await connection.execute(latest)
            return True

        return await self._database.write(work)

    async def finish(self, new: Artifact, keeping: Keeping) -> Artifact | None:
        """Make it seen; None if parts are missing, then begin again."""
        there = select(func.count()).where(part.artifact_id == new.id, part.number < count_parts(new.size))
        whole = (
            update(artifacts)
            .where(kept.id == new.id, there.scalar_subquery() == count_parts(new.size))
            .values(is_whole=True, expires_at=_lasting(keeping, keeping.ttl))
            .returning(artifacts)
        )

        async def work(connection: AsyncConnection) -> Artifact | None:
            row = (await connection.execute(whole)).one_or_none()
            return None if row is None else await self._own(connection, row, new)

        return await self._evicting(await self._database.write(work), keeping)

    async def find(self, id: str, session_id: str | None) -> Artifact | None:
        """Read what is known of an artifact of that session; None if it has none of that id, or no longer."""
        return await self._one(kept.id == id, owner.session_key == session_key(session_id))

    async def get(self, id: str) -> Artifact | None:
        """Read what is known of an artifact, whosever it is: for people, not for tools."""
        return await self._one(kept.id == clean(id))

    async def of_execution(self, execution_id: str) -> list[Artifact]:
        """List what an execution kept."""
        return await self._list(owner.execution_id == clean(execution_id))

    async def part(self, artifact: Artifact, number: int) -> bytes | None:
        """Read one packed part of what its session kept; None if that is not there, or no longer."""
        mine = exists().where(owner.artifact_id == artifact.id, owner.session_key == session_key(artifact.session_id))
        query = select(part.data).where(part.artifact_id == artifact.id, part.number == number, mine)
        async with self._database.reading() as connection:
            data = await connection.scalar(query)
        return None if data is None else bytes(data)

    async def read(self, artifact: Artifact) -> AsyncIterator[bytes]:
        """Return the bytes of an artifact, one part in memory at a time.

        Raises:
            StorageError: it is gone meanwhile, or damaged.
        """
        digest = blake2b(digest_size=16)
        for number in range(count_parts(artifact.size)):
            data = await self.part(artifact, number)
            if data is None:
                raise StorageError(f"{artifact.handle} has expired while it was read. Run the call again")
            digest.update(chunk := unpack(data))
            yield chunk
        if digest.hexdigest() != artifact.id:
            raise StorageError(f"{artifact.handle} is damaged. Run the call again")

    async def contents(self, handle: str) -> AsyncIterator[bytes]:
        """Do what `read` does, for whoever has a handle or an id.

        Raises:
            ArtifactNotFoundError: there is none of that name, or it has expired.
        """
        artifact = await self.get(handle.removeprefix(SCHEME))
        if artifact is None:
            raise ArtifactNotFoundError(f"There is no artifact {handle[:60]}, or it has expired. Run the call again.")
        async for chunk in self.read(artifact):
            yield chunk

    async def purge(self, most: int = 100) -> int:
        """Delete what has expired and what was never finished, each in its own transaction; returns how many."""
        overdue = select(kept.id).where(kept.expires_at <= from_now(0.0)).order_by(kept.expires_at).limit(most)
        async with self._database.reading() as connection:
            found = (await connection.scalars(overdue)).all()
        return sum([await self._purge(one) for one in found])

    async def _purge(self, id: str) -> bool:
        gone = delete(artifacts).where(kept.id == id, kept.expires_at <= from_now(0.0))

        async def work(connection: AsyncConnection) -> bool:
            if not (await connection.execute(gone)).rowcount:
                return False  # somebody else did, or wants it again
            await connection.execute(delete(artifact_parts).where(part.artifact_id == id))
            await connection.execute(delete(artifact_owners).where(owner.artifact_id == id))
            return True

        return await self._database.write(work)

    async def _one(self, *which: ColumnElement[bool]) -> Artifact | None:
        return next(iter(await self._list(*which)), None)

    async def _list(self, *which: ColumnElement[bool]) -> list[Artifact]:
        query = (
            select(artifacts, owner.execution_id, owner.session_id)
            .join(artifact_owners, owner.artifact_id == kept.id)
            .where(*which, kept.is_whole, kept.expires_at > from_now(0.0))
            .order_by(owner.kept_at, kept.id)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).all()
        return [_artifact(row, row.execution_id, row.session_id) for row in rows]

    async def _own(self, connection: AsyncConnection, row: Row[Any], new: Artifact) -> Artifact:
        """Note whose it is, in the transaction that holds its row."""
        facts = {"execution_id": clean(new.execution_id and new.execution_id[:64]), "kept_at": from_now(0.0)}
        mine = self._database.upsert(artifact_owners).values(
            artifact_id=new.id,
            session_key=session_key(new.session_id),
            session_id=clean(new.session_id),
            size=new.size,
            **facts,
        )
        await connection.execute(mine.on_conflict_do_update(index_elements=["artifact_id", "session_key"], set_=facts))
        return _artifact(row, new.execution_id, new.session_id)

    async def _evicting(self, artifact: Artifact | None, keeping: Keeping) -> Artifact | None:
        """Take from a session that holds too much what it kept first."""
        if artifact is not None:
            await self._evict(session_key(artifact.session_id), keeping.quota)
        return artifact

    async def _evict(self, key: str, quota: int) -> None:
        latest_first = (owner.kept_at.desc(), owner.artifact_id)
        held = select(owner.artifact_id, func.sum(owner.size).over(order_by=latest_first).label("held")).where(
            owner.session_key == key
        )
        rows = held.subquery()
        async with self._database.reading() as connection:
            excess: Sequence[str] = (
                await connection.scalars(select(rows.c.artifact_id).where(rows.c.held > quota))
            ).all()
        for one in sorted(excess):
            await self._database.write(_Eviction(one, key))


@dataclass(frozen=True, slots=True)
class _Eviction:
    """Takes an artifact from a session; one that is nobody's any more expires."""

    id: str
    key: str

    async def __call__(self, connection: AsyncConnection) -> None:
        await connection.execute(select(kept.id).where(kept.id == self.id).with_for_update())
        await connection.execute(
            delete(artifact_owners).where(owner.artifact_id == self.id, owner.session_key == self.key)
        )
        is_owned = exists().where(owner.artifact_id == self.id)
        await connection.execute(
            update(artifacts).where(kept.id == self.id, kept.is_whole, ~is_owned).values(expires_at=from_now(0.0))
        )


def session_key(session_id: str | None) -> str:
    """A session as the key of a row; calls of no session share one."""
    if session_id is None:
        return ""
    return blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _lasting(keeping: Keeping, otherwise: float) -> ColumnElement[Any]:
    """What is whole is kept for longer, never for less; what is not expires in `otherwise` seconds."""
    is_longer = kept.is_whole & (kept.expires_at > from_now(keeping.ttl))
    seconds = case((kept.is_whole, keeping.ttl), else_=otherwise)
    return case((is_longer, kept.expires_at), else_=from_now(seconds))


def _artifact(row: Row[Any], execution_id: str | None, session_id: str | None) -> Artifact:
    return Artifact(
        id=row.id,
        size=row.size,
        media_type=row.media_type,
        execution_id=execution_id,
        session_id=session_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
