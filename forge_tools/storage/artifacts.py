"""The rows of artifacts: written part by part, seen only when whole, shared by all whose bytes are the same."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Row, case, delete, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.artifacts.pages import Pages, whole
from forge_tools.artifacts.parts import unpack
from forge_tools.errors import ArtifactDamagedError, ArtifactFolderError, ArtifactNotFoundError, StorageError
from forge_tools.records import Artifact, ArtifactPage, PageWish
from forge_tools.records.artifacts import SCHEME
from forge_tools.storage.artifact_parts import Parts, session_key
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import from_now
from forge_tools.storage.models import artifact_owners, artifacts
from forge_tools.storage.rows import clean, record_of

UPLOAD_SECONDS = 3600.0
"""After so long without a further part, what is not whole is a leftover."""

kept, owner = artifacts.c, artifact_owners.c

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long an artifact stays, in seconds, and how many bytes a session may hold."""

    ttl: float
    quota: int


class StoredArtifacts:
    """Begin, add the parts in any order, finish. Who is killed in between leaves nothing that anybody could see."""

    def __init__(self, database: Database, folder: Path | None = None) -> None:
        self._database = database
        self._parts = Parts(database, folder)

    async def begin(self, new: Artifact, keeping: Keeping) -> Artifact | None:
        """Announce an artifact. If its bytes are here already it is kept for longer and returned: nothing is left to do.

        Its bytes are taken as they come: whoever may send others has to prove them before.
        """
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

        again = update(artifacts).where(kept.id == new.id).values(is_whole=False, expires_at=from_now(UPLOAD_SECONDS))

        async def work(connection: AsyncConnection) -> Artifact | None:
            row = (await connection.execute(announced)).one()
            if not row.is_whole:
                return None
            there = replace(new, size=row.size)  # whoever only knows the id may say that there is more of it
            if not await self._parts.are_all_there(connection, there):  # somebody deleted files; they come again
                await connection.execute(again)
                return None
            return await self._own(connection, row, new)

        return await self._evicting(await self._database.write(work), keeping)

    async def renew(self, new: Artifact, keeping: Keeping) -> Artifact | None:
        """Keep for longer what its session has kept before; None where it has to come again, or never came.

        An id alone proves nothing: for other sessions nothing is changed.
        """
        mine = exists().where(owner.artifact_id == new.id, owner.session_key == session_key(new.session_id))
        longer = (
            update(artifacts)
            .where(kept.id == new.id, kept.is_whole, mine)
            .values(expires_at=_lasting(keeping, keeping.ttl))
            .returning(artifacts)
        )

        async def work(connection: AsyncConnection) -> Artifact | None:
            row = (await connection.execute(longer)).one_or_none()
            if row is None or not await self._parts.are_all_there(connection, replace(new, size=row.size)):
                return None
            return await self._own(connection, row, new)

        return await self._evicting(await self._database.write(work), keeping)

    async def add(self, id: str, number: int, data: bytes, breaks: int | None = None) -> bool:
        """Store one packed part, in which so many lines end.

        False if it is no longer waited for: somebody else finished, or it was given up.
        """
        waiting = update(artifacts).where(kept.id == id, ~kept.is_whole).values(expires_at=from_now(UPLOAD_SECONDS))

        async def work(connection: AsyncConnection) -> bool:
            if not (await connection.execute(waiting)).rowcount:
                return False
            await self._parts.write(connection, id, number, data, breaks)
            return True

        return await self._database.write(work)

    async def finish(self, new: Artifact, keeping: Keeping) -> Artifact | None:
        """Make it seen; None if parts are missing, then begin again."""
        locked = select(kept.id).where(kept.id == new.id).with_for_update()
        whole = (
            update(artifacts)
            .where(kept.id == new.id)
            .values(is_whole=True, size=new.size, expires_at=_lasting(keeping, keeping.ttl))
            .returning(artifacts)
        )

        async def work(connection: AsyncConnection) -> Artifact | None:
            if await connection.scalar(locked) is None or not await self._parts.are_all_there(connection, new):
                return None
            return await self._own(connection, (await connection.execute(whole)).one(), new)

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
        """Read one packed part of what its session kept; None if that is not there, or no longer.

        Raises:
            StorageError: it should be there and is not.
        """
        return await self._parts.read(artifact, number)

    async def chunk(self, artifact: Artifact, number: int) -> bytes:
        """Read what one part holds.

        Raises:
            StorageError: it is gone meanwhile, or damaged.
        """
        data = await self.part(artifact, number)
        if data is None:
            raise StorageError(f"{artifact.handle} has expired while it was read. Run the call again")
        try:
            return unpack(data, number, artifact.size)
        except ValueError as error:
            raise await self._damaged(artifact, error) from error

    async def page(self, artifact: Artifact, wish: PageWish) -> ArtifactPage:
        """Read a page of what its session kept, without all that lies before it.

        Raises:
            InvalidCallError: there is no such page.
            StorageError: the artifact is gone meanwhile, or damaged.
        """
        return await Pages(artifact, await self._parts.breaks(artifact), partial(self.chunk, artifact)).read(wish)

    async def read(self, artifact: Artifact) -> AsyncIterator[bytes]:
        """Return the bytes of an artifact, one part in memory at a time.

        Raises:
            StorageError: it is gone meanwhile, or damaged.
        """
        try:
            async for data in whole(artifact, partial(self.chunk, artifact)):
                yield data
        except ValueError as error:
            raise await self._damaged(artifact, error) from error

    async def contents(self, handle: str) -> AsyncIterator[bytes]:
        """Do what `read` does, for whoever has a handle or an id.

        Raises:
            ArtifactNotFoundError: there is none of that name, or it has expired.
        """
        async for chunk in self.read(await self.named(handle)):
            yield chunk

    async def named(self, handle: str) -> Artifact:
        """Do what `get` does, for whoever has a handle or an id.

        Raises:
            ArtifactNotFoundError: there is none of that name, or it has expired.
        """
        artifact = await self.get(handle.removeprefix(SCHEME))
        if artifact is None:
            raise ArtifactNotFoundError(f"There is no artifact {handle[:60]}, or it has expired. Run the call again.")
        return artifact

    async def check(self, artifact: Artifact) -> None:
        """Read all of it, which takes care of it if it is damaged."""
        with suppress(ArtifactDamagedError):
            async for _ in self.read(artifact):
                pass

    async def purge(self, most: int = 100) -> int:
        """Delete what has expired and what was never finished, each in its own transaction; returns how many."""
        overdue = select(kept.id).where(kept.expires_at <= from_now(0.0), self._parts.can_delete)
        async with self._database.reading() as connection:
            found = (await connection.scalars(overdue.order_by(kept.expires_at).limit(most))).all()
        return sum([await self._purge(one) for one in found])

    async def _purge(self, id: str) -> bool:
        gone = delete(artifacts).where(kept.id == id, kept.expires_at <= from_now(0.0))

        async def work(connection: AsyncConnection) -> bool:
            if not (await connection.execute(gone)).rowcount:
                return False  # somebody else did, or wants it again
            await self._parts.delete(connection, id)
            await connection.execute(delete(artifact_owners).where(owner.artifact_id == id))
            return True

        try:
            return await self._database.write(work)
        except ArtifactFolderError as error:
            await self._put_off(id, error)
            return False

    async def _damaged(self, artifact: Artifact, error: ValueError) -> ArtifactDamagedError:
        """Let nobody see bytes that are not those that were kept: who has the right ones may then store them again."""
        logger.warning("An artifact is damaged", extra={"artifact": artifact.id, "error": str(error)})
        with suppress(StorageError):  # a client may not be allowed to; then a worker does when it reads it
            await self._hide(kept.id == artifact.id)
        return ArtifactDamagedError(f"{artifact.handle} is damaged: {error}. Run the call again")

    async def _put_off(self, id: str, error: ArtifactFolderError) -> None:
        """What cannot be deleted now is not seen any more, and must not keep others from being deleted."""
        logger.warning("An expired artifact is not deleted yet", extra={"artifact": id, "error": error.message})
        await self._hide(kept.id == id, kept.expires_at <= from_now(0.0))

    async def _hide(self, *which: ColumnElement[bool]) -> None:
        hidden = update(artifacts).where(*which).values(is_whole=False, expires_at=from_now(UPLOAD_SECONDS))
        await self._database.write(lambda connection: connection.execute(hidden))

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


def _lasting(keeping: Keeping, otherwise: float) -> ColumnElement[Any]:
    """What is whole is kept for longer, never for less; what is not expires in `otherwise` seconds."""
    is_longer = kept.is_whole & (kept.expires_at > from_now(keeping.ttl))
    seconds = case((kept.is_whole, keeping.ttl), else_=otherwise)
    return case((is_longer, kept.expires_at), else_=from_now(seconds))


def _artifact(row: Row[Any], execution_id: str | None, session_id: str | None) -> Artifact:
    return record_of(Artifact, row, execution_id=execution_id, session_id=session_id)
