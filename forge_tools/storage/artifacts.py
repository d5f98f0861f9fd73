"""Artifacts: written part by part, to rows or to files in a folder; visible once whole; equal bytes stored once."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Row, case, delete, exists, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.artifacts.media import media_type
from forge_tools.artifacts.parts import PART_BYTES, PackedPart, count_parts, measured, unpack
from forge_tools.artifacts.reader import Pages, whole
from forge_tools.errors import (
    ArtifactDamagedError,
    ArtifactFolderError,
    ArtifactNotFoundError,
    InvalidCallError,
    StorageError,
)
from forge_tools.model import Artifact, ArtifactPage, PageWish
from forge_tools.model.artifacts import SCHEME
from forge_tools.storage.connection.database import Database
from forge_tools.storage.connection.faults import ForbiddenError
from forge_tools.storage.functions import any_of, from_now
from forge_tools.storage.parts import Parts, session_key
from forge_tools.storage.rows import clean, record_of
from forge_tools.storage.tables import artifact_owners, artifacts

UPLOAD_SECONDS = 3600.0
"""An artifact that is not whole is given up when no part arrives for so long."""

MOST_TRIES = 3
"""How often the parts of an artifact are sent again if others delete it meanwhile."""

kept, owner = artifacts.c, artifact_owners.c

_OWN = text(
    "INSERT INTO artifacts (size, media_type, is_whole, created_at, expires_at, digest) VALUES"
    " (:size, :media_type, false, now(), now() + make_interval(secs => :seconds), :digest) RETURNING id"
)
"""Names no id, and nobody who uploaded it: clients may say neither."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long an artifact stays, in seconds, and how many bytes a session may hold."""

    ttl: float
    quota: int


class StoredArtifacts:
    """Begin, add the parts in any order, finish: `keep` does all of it. Killed in between, nothing of it can be seen."""

    def __init__(self, database: Database, folder: Path | None = None) -> None:
        self._database = database
        self._parts = Parts(database, folder)

    async def keep(
        self, new: Artifact, keeping: Keeping, part: Callable[[int], Awaitable[PackedPart]]
    ) -> Artifact | None:
        """Store an artifact, whose parts are asked for if it is not there; None if others deleted it, repeatedly."""
        for _ in range(MOST_TRIES):
            if done := await self.begin(new, keeping) or await self._send(new, keeping, part):
                return done
        return None

    async def begin(self, new: Artifact, keeping: Keeping) -> Artifact | None:
        """Announce an artifact. If its bytes are already stored, extend its expiry and return it: no parts are needed.

        The bytes are not verified: a caller who might send others must prove first that it has these.
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
                uploaded_by=None,  # rather than the default, which is for clients
            )
            .on_conflict_do_update(index_elements=["id"], set_={"expires_at": _lasting(keeping, UPLOAD_SECONDS)})
            .returning(artifacts)
        )

        again = update(artifacts).where(kept.id == new.id).values(is_whole=False, expires_at=from_now(UPLOAD_SECONDS))

        async def work(connection: AsyncConnection) -> Artifact | None:
            row = (await connection.execute(announced)).one()
            if not row.is_whole:
                return None
            there = replace(new, size=row.size)  # the id is known to others, who may claim a larger size
            if not await self._parts.are_all_there(connection, there):  # somebody deleted files; parts are sent again
                await connection.execute(again)
                return None
            return await self._own(connection, row, new)

        return await self._evicting(await self._database.write(work), keeping)

    async def renew(self, new: Artifact, keeping: Keeping) -> Artifact | None:
        """Extend the expiry of what its session kept before; None if the bytes must be sent again, or never were.

        An id proves nothing: for other sessions nothing changes.
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

    async def add(self, id: str, part: PackedPart) -> bool:
        """Store one part.

        Returns False if it is not needed any more: somebody else finished the artifact, or it was given up.
        """
        waiting = update(artifacts).where(kept.id == id, ~kept.is_whole).values(expires_at=from_now(UPLOAD_SECONDS))

        async def work(connection: AsyncConnection) -> bool:
            if not (await connection.execute(waiting)).rowcount:
                return False
            await self._parts.write(connection, id, part)
            return True

        return await self._database.write(work)

    async def finish(self, new: Artifact, keeping: Keeping) -> Artifact | None:
        """Make it visible; None if parts are missing: begin again."""
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

    async def upload(self, path: Path, *, ttl: float, quota: int, limit: int, session_id: str | None) -> Artifact:
        """Keep a file of this host, one part in memory at a time.

        Raises:
            InvalidCallError: it has more bytes than `limit`, or changed while it was read.
        """
        with path.open("rb") as file:
            keeping = Keeping(ttl, quota)
            whole = await asyncio.to_thread(measured, file)
            new = Artifact(id=whole.id, size=whole.size, media_type=media_type(whole.head), session_id=session_id)
            if new.size > limit:
                raise InvalidCallError(f"{path} has {new.size:,} bytes; FORGE_MAX_PART_SIZE allows {limit:,}")
            try:
                kept = await self.begin(new, keeping)
            except ForbiddenError:  # a client that may only keep what is its own
                new, kept = await self._begin_own(new), None

            def packed(number: int) -> PackedPart:
                file.seek(number * PART_BYTES)
                return PackedPart.of(number, file.read(PART_BYTES), new.media_type)

            kept = kept or await self._send(new, keeping, lambda number: asyncio.to_thread(packed, number))
            if kept is None or await asyncio.to_thread(measured, file) != whole:
                raise InvalidCallError(f"{path} was changed while it was being read. Upload it again")
        return kept

    async def _begin_own(self, new: Artifact) -> Artifact:
        """Announce an artifact under an id that the database makes up: it could not tell whether given bytes are those of a digest."""

        async def work(connection: AsyncConnection) -> str:
            facts = {"size": new.size, "media_type": clean(new.media_type), "digest": new.id}
            return str(await connection.scalar(_OWN, facts | {"seconds": UPLOAD_SECONDS}))

        return replace(new, id=await self._database.write(work), digest=new.id)

    async def _send(
        self, new: Artifact, keeping: Keeping, part: Callable[[int], Awaitable[PackedPart]]
    ) -> Artifact | None:
        """Add all parts and finish."""
        for number in range(count_parts(new.size)):
            if not await self.add(new.id, await part(number)):
                return None
        return await self.finish(new, keeping)

    async def find(self, id: str, session_id: str | None) -> Artifact | None:
        """Read the metadata of an artifact of that session; None if it has none of that id, or no longer."""
        return await self._one(kept.id == id, owner.session_key == session_key(session_id))

    async def get(self, id: str) -> Artifact | None:
        """Read the metadata of an artifact of any session: for people, not for tools."""
        return await self._one(kept.id == clean(id))

    async def ids(self, session_id: str | None, beginning: str, most: int) -> list[str]:
        """List the artifacts of a session whose ids begin so, those that it kept last first."""
        query = (
            select(kept.id)
            .join(artifact_owners, owner.artifact_id == kept.id)
            .where(owner.session_key == session_key(session_id), kept.id.startswith(clean(beginning), autoescape=True))
            .where(kept.is_whole, kept.expires_at > from_now(0.0))
            .order_by(owner.kept_at.desc(), kept.id)
            .limit(most)
        )
        return list(await self._database.scalars(query))

    async def of_execution(self, execution_id: str) -> list[Artifact]:
        """List what an execution kept."""
        return await self._list(owner.execution_id == clean(execution_id))

    async def part(self, artifact: Artifact, number: int) -> bytes | None:
        """Read one packed part of what its session kept; None if it is not there, or no longer.

        Raises:
            StorageError: it should be there and is not.
        """
        return await self._parts.read(artifact, number)

    async def chunk(self, artifact: Artifact, number: int) -> bytes:
        """Read and unpack one part.

        Raises:
            StorageError: it has expired meanwhile, or is damaged.
        """
        data = await self.part(artifact, number)
        if data is None:
            raise StorageError(f"{artifact.handle} expired while it was being read. Run the call again")
        try:
            return unpack(data, number, artifact.size)
        except ValueError as error:
            raise await self._damaged(artifact, error) from error

    async def page(self, artifact: Artifact, wish: PageWish) -> ArtifactPage:
        """Read a page of what its session kept, without reading everything before it.

        Raises:
            InvalidCallError: there is no such page.
            StorageError: the artifact has expired meanwhile, or is damaged.
        """
        return await Pages(artifact, await self._parts.breaks(artifact), partial(self.chunk, artifact)).read(wish)

    async def read(self, artifact: Artifact) -> AsyncIterator[bytes]:
        """Yield the bytes of an artifact, one part in memory at a time.

        Raises:
            StorageError: it has expired meanwhile, or is damaged.
        """
        try:
            async for data in whole(artifact, partial(self.chunk, artifact)):
                yield data
        except ValueError as error:
            raise await self._damaged(artifact, error) from error

    async def contents(self, handle: str) -> AsyncIterator[bytes]:
        """Do the same as `read`, given a handle or an id.

        Raises:
            ArtifactNotFoundError: there is none of that name, or it has expired.
        """
        async for chunk in self.read(await self.named(handle)):
            yield chunk

    async def named(self, handle: str) -> Artifact:
        """Do the same as `get`, given a handle or an id.

        Raises:
            ArtifactNotFoundError: there is none of that name, or it has expired.
        """
        artifact = await self.get(handle.removeprefix(SCHEME))
        if artifact is None:
            raise ArtifactNotFoundError(f"There is no artifact {handle[:60]}, or it has expired. Run the call again.")
        return artifact

    async def check(self, artifact: Artifact) -> None:
        """Read all of it, which hides it if it is damaged."""
        with suppress(ArtifactDamagedError):
            async for _ in self.read(artifact):
                pass

    async def purge(self, most: int = 100) -> int:
        """Delete expired and unfinished artifacts, each in its own transaction; returns how many."""
        overdue = select(kept.id).where(kept.expires_at <= from_now(0.0), self._parts.can_delete)
        found = await self._database.scalars(overdue.order_by(kept.expires_at).limit(most))
        return sum([await self._purge(one) for one in found])

    async def _purge(self, id: str) -> bool:
        gone = delete(artifacts).where(kept.id == id, kept.expires_at <= from_now(0.0))

        async def work(connection: AsyncConnection) -> bool:
            if not (await connection.execute(gone)).rowcount:
                return False  # somebody else deleted it, or needs it again
            await self._parts.delete(connection, id)
            await connection.execute(delete(artifact_owners).where(owner.artifact_id == id))
            return True

        try:
            return await self._database.write(work)
        except ArtifactFolderError as error:
            # Hide it and retry later, so that others can be deleted meanwhile.
            logger.warning("An expired artifact is not deleted yet", extra={"artifact": id, "error": error.message})
            await self._hide(kept.id == id, kept.expires_at <= from_now(0.0))
            return False

    async def _damaged(self, artifact: Artifact, error: ValueError) -> ArtifactDamagedError:
        """Hide an artifact whose bytes have changed; anybody who has the right bytes may store them again."""
        logger.warning("An artifact is damaged", extra={"artifact": artifact.id, "error": str(error)})
        with suppress(StorageError):  # a client may lack the right to; a worker hides it when it reads it
            await self._hide(kept.id == artifact.id)
        return ArtifactDamagedError(f"{artifact.handle} is damaged: {error}. Run the call again")

    async def _hide(self, *which: ColumnElement[bool]) -> None:
        hidden = update(artifacts).where(*which).values(is_whole=False, expires_at=from_now(UPLOAD_SECONDS))
        await self._database.execute(hidden)

    async def _one(self, *which: ColumnElement[bool]) -> Artifact | None:
        return next(iter(await self._list(*which)), None)

    async def _list(self, *which: ColumnElement[bool]) -> list[Artifact]:
        query = (
            select(artifacts, owner.execution_id, owner.session_id)
            .join(artifact_owners, owner.artifact_id == kept.id)
            .where(*which, kept.is_whole, kept.expires_at > from_now(0.0))
            .order_by(owner.kept_at, kept.id)
        )
        rows = await self._database.rows(query)
        return [record_of(Artifact, row) for row in rows]

    async def _own(self, connection: AsyncConnection, row: Row[Any], new: Artifact) -> Artifact:
        """Record its owner, in the transaction that has locked its row."""
        facts = {"execution_id": clean(new.execution_id and new.execution_id[:64]), "kept_at": from_now(0.0)}
        mine = self._database.upsert(artifact_owners).values(
            artifact_id=new.id,
            session_key=session_key(new.session_id),
            session_id=clean(new.session_id),
            size=new.size,
            **facts,
        )
        await connection.execute(mine.on_conflict_do_update(index_elements=["artifact_id", "session_key"], set_=facts))
        return record_of(Artifact, row, execution_id=new.execution_id, session_id=new.session_id)

    async def _evicting(self, artifact: Artifact | None, keeping: Keeping) -> Artifact | None:
        """If the session holds too much, disown what it has kept longest."""
        if artifact is None:
            return None
        key = session_key(artifact.session_id)
        latest_first = (owner.kept_at.desc(), owner.artifact_id)
        held = select(owner.artifact_id, func.sum(owner.size).over(order_by=latest_first).label("held")).where(
            owner.session_key == key
        )
        rows = held.subquery()
        excess: Sequence[str] = await self._database.scalars(
            select(rows.c.artifact_id).where(rows.c.held > keeping.quota)
        )
        with suppress(ForbiddenError):  # a client deletes nothing; the next worker that keeps something there does
            for one in sorted(excess):
                await self._database.write(partial(disown, [one], owner.session_key == key))
        return artifact


async def disown(ids: Sequence[str], whose: ColumnElement[bool], connection: AsyncConnection) -> None:
    """Take artifacts from these owners. Those left without an owner expire at once and are purged like all others."""
    is_it, is_owned = any_of(kept.id, ids), exists().where(owner.artifact_id == kept.id)
    await connection.execute(select(kept.id).where(is_it).order_by(kept.id).with_for_update())
    # Another call may have kept one meanwhile; then the row belongs to that call.
    await connection.execute(delete(artifact_owners).where(any_of(owner.artifact_id, ids), whose))
    nobodys = update(artifacts).where(is_it, kept.is_whole, ~is_owned)
    await connection.execute(nobodys.values(expires_at=from_now(0.0)))


def _lasting(keeping: Keeping, otherwise: float) -> ColumnElement[Any]:
    """Return when an artifact expires: a whole one never earlier than before, any other in `otherwise` seconds."""
    is_longer = kept.is_whole & (kept.expires_at > from_now(keeping.ttl))
    seconds = case((kept.is_whole, keeping.ttl), else_=otherwise)
    return case((is_longer, kept.expires_at), else_=from_now(seconds))
