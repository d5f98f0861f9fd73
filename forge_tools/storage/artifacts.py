"""Artifacts: written part by part, in rows or in a folder of files, seen only when whole, shared by all whose bytes are the same."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import ColumnElement, Row, case, delete, exists, func, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.artifacts.media import media_type
from forge_tools.artifacts.parts import PART_BYTES, PartFiles, count_parts, measured, pack, unpack
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
from forge_tools.storage.functions import any_of, from_now
from forge_tools.storage.rows import clean, record_of
from forge_tools.storage.tables import artifact_owners, artifact_parts, artifacts

UPLOAD_SECONDS = 3600.0
"""After so long without another part, an artifact that is not whole is given up."""

kept, part, owner = artifacts.c, artifact_parts.c, artifact_owners.c

T = TypeVar("T")
P = ParamSpec("P")

_IN_A_FILE = b""  # no packed part is empty
_is_in_a_file = func.length(part.data) == 0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long an artifact stays, in seconds, and how many bytes a session may hold."""

    ttl: float
    quota: int


class StoredArtifacts:
    """Begin, add the parts in any order, finish. A process that is killed in between leaves nothing that anybody could see."""

    def __init__(self, database: Database, folder: Path | None = None) -> None:
        self._database = database
        self._parts = Parts(database, folder)

    async def begin(self, new: Artifact, keeping: Keeping) -> Artifact | None:
        """Announce an artifact. If its bytes are there already, it is kept for longer and returned: nothing is left to do.

        Its bytes are taken as they come: whoever might send others has to prove first that it has them.
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
        """Keep for longer what its session has kept before; None if its bytes have to be sent again, or never were.

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
        """Store one packed part, in which `breaks` lines end.

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
            InvalidCallError: it has more bytes than `limit`, or others by the end than at the beginning.
        """
        with path.open("rb") as file:
            keeping = Keeping(ttl, quota)
            whole = await asyncio.to_thread(measured, file)
            new = Artifact(id=whole.id, size=whole.size, media_type=media_type(whole.head), session_id=session_id)
            if new.size > limit:
                raise InvalidCallError(f"{path} has {new.size:,} bytes; FORGE_MAX_PART_SIZE allows {limit:,}")
            kept = await self.begin(new, keeping)
            for number in range(count_parts(new.size)) if kept is None else ():
                data = await asyncio.to_thread(file.read, PART_BYTES)
                await self.add(new.id, number, await asyncio.to_thread(pack, data, new.media_type), data.count(b"\n"))
            kept = kept or await self.finish(new, keeping)
            if kept is None or await asyncio.to_thread(measured, file) != whole:
                raise InvalidCallError(f"{path} was changed while it was being read. Upload it again")
        return kept

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
            raise StorageError(f"{artifact.handle} expired while it was being read. Run the call again")
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
        """Read all of it, so that it is hidden if it is damaged."""
        with suppress(ArtifactDamagedError):
            async for _ in self.read(artifact):
                pass

    async def purge(self, most: int = 100) -> int:
        """Delete what has expired and what was never finished, each in its own transaction; returns how many."""
        overdue = select(kept.id).where(kept.expires_at <= from_now(0.0), self._parts.can_delete)
        found = await self._database.scalars(overdue.order_by(kept.expires_at).limit(most))
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
            # It is hidden, and tried later, so that others can be deleted meanwhile.
            logger.warning("An expired artifact is not deleted yet", extra={"artifact": id, "error": error.message})
            await self._hide(kept.id == id, kept.expires_at <= from_now(0.0))
            return False

    async def _damaged(self, artifact: Artifact, error: ValueError) -> ArtifactDamagedError:
        """Hide an artifact whose bytes are not those that were kept; whoever has the right ones may store them again."""
        logger.warning("An artifact is damaged", extra={"artifact": artifact.id, "error": str(error)})
        with suppress(StorageError):  # a client may not be allowed to; then a worker does when it reads it
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
        """Note whose it is, in the transaction that has locked its row."""
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
        """Take from a session that holds too much what it kept longest."""
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
        for one in sorted(excess):
            await self._database.write(partial(disown, [one], owner.session_key == key))
        return artifact


async def disown(ids: Sequence[str], whose: ColumnElement[bool], connection: AsyncConnection) -> None:
    """Take artifacts from these owners; those that nobody owns any more expire at once, and go like all that have expired."""
    is_it, is_owned = any_of(kept.id, ids), exists().where(owner.artifact_id == kept.id)
    await connection.execute(select(kept.id).where(is_it).order_by(kept.id).with_for_update())
    # Another call may have kept it meanwhile, and then the row is that call's.
    await connection.execute(delete(artifact_owners).where(any_of(owner.artifact_id, ids), whose))
    nobodys = update(artifacts).where(is_it, kept.is_whole, ~is_owned)
    await connection.execute(nobodys.values(expires_at=from_now(0.0)))


def _lasting(keeping: Keeping, otherwise: float) -> ColumnElement[Any]:
    """When an artifact expires: one that is whole never earlier than before; another one in `otherwise` seconds."""
    is_longer = kept.is_whole & (kept.expires_at > from_now(keeping.ttl))
    seconds = case((kept.is_whole, keeping.ttl), else_=otherwise)
    return case((is_longer, kept.expires_at), else_=from_now(seconds))


class Parts:
    """Packed parts. Methods that take a connection need the row of the artifact locked in its transaction.

    Files are written and deleted while that lock is held, so that nobody deletes what another one is writing.
    """

    def __init__(self, database: Database, folder: Path | None) -> None:
        self._database = database
        self._files = None if folder is None else PartFiles(folder)

    async def write(self, connection: AsyncConnection, id: str, number: int, data: bytes, breaks: int | None) -> None:
        """Store a part, in which `breaks` lines end."""
        held = data
        if self._files is not None:
            await self._on_disk(self._files.write, id, number, data)
            held = _IN_A_FILE
        row = self._database.upsert(artifact_parts).values(
            artifact_id=id, number=number, start=number * PART_BYTES, data=held, breaks=breaks
        )
        facts = {"data": held, "breaks": breaks}
        await connection.execute(row.on_conflict_do_update(index_elements=["artifact_id", "number"], set_=facts))

    async def are_all_there(self, connection: AsyncConnection, artifact: Artifact) -> bool:
        """Whether no part is missing; files in a folder that this process does not know count as there."""
        expected = part.artifact_id == artifact.id, part.number < count_parts(artifact.size)
        rows = (await connection.execute(select(part.number, _is_in_a_file).where(*expected))).all()
        in_files = [number for number, is_in_a_file in rows if is_in_a_file]
        if len(rows) < count_parts(artifact.size):
            return False
        return not in_files or self._files is None or await self._on_disk(self._files.are_there, artifact.id, in_files)

    async def read(self, artifact: Artifact, number: int) -> bytes | None:
        """Read a part of what its session kept; None if that is not there, or no longer.

        Raises:
            ArtifactDamagedError: its file is missing.
            ArtifactFolderError: this process cannot read it.
        """
        mine = exists().where(owner.artifact_id == artifact.id, owner.session_key == session_key(artifact.session_id))
        query = select(part.data).where(part.artifact_id == artifact.id, part.number == number, mine)
        data = await self._database.scalar(query)
        if data is None or data != _IN_A_FILE:
            return None if data is None else bytes(data)
        return await self._read_file(artifact, number)

    async def breaks(self, artifact: Artifact) -> list[int | None]:
        """How many lines end in each part; None where nobody counted them."""
        query = select(part.breaks).where(part.artifact_id == artifact.id).order_by(part.number)
        return list(await self._database.scalars(query))

    async def delete(self, connection: AsyncConnection, id: str) -> None:
        """Delete all parts.

        Raises:
            ArtifactFolderError: files cannot be deleted.
        """
        if self._files is not None:
            await self._on_disk(self._files.remove, id)
        await connection.execute(delete(artifact_parts).where(part.artifact_id == id))

    @property
    def can_delete(self) -> ColumnElement[bool]:
        """The condition for artifacts whose bytes this process can get at."""
        in_files = exists().where(part.artifact_id == artifacts.c.id, _is_in_a_file)
        return true() if self._files is not None else ~in_files

    async def _read_file(self, artifact: Artifact, number: int) -> bytes | None:
        if self._files is None:
            raise ArtifactFolderError(
                f"{artifact.handle} is kept in a folder that this process does not know. "
                "Set FORGE_ARTIFACT_DIR to the same folder as the workers"
            )
        try:
            return await self._on_disk(self._files.read, artifact.id, number)
        except FileNotFoundError:
            if await self._database.scalar(select(artifacts.c.id).where(artifacts.c.id == artifact.id)) is None:
                return None
            where = f"part {number} is missing in {self._files.folder}"
            raise ArtifactDamagedError(f"{artifact.handle} is damaged: {where}. Run the call again") from None

    async def _on_disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except FileNotFoundError:
            if self._files is not None and self._files.folder.exists():
                raise
            raise self._unusable("it does not exist") from None
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error

    def _unusable(self, reason: str) -> ArtifactFolderError:
        folder = self._files and self._files.folder
        return ArtifactFolderError(f"The folder of artifacts {folder} (FORGE_ARTIFACT_DIR) cannot be used: {reason}")


def session_key(session_id: str | None) -> str:
    """A session as the key of a row; calls of no session share one."""
    if session_id is None:
        return ""
    return blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
