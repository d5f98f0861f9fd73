"""Artifacts: written to rows, part by part, or to files in a folder; visible once whole; equal bytes stored once."""

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import ColumnElement, Row, case, delete, exists, func, insert, select, true, update

from forge_tools.artifacts.media import media_type
from forge_tools.artifacts.parts import PART_BYTES, ArtifactFiles, Draft, PackedPart, count_parts, unpack
from forge_tools.artifacts.reader import Pages, whole
from forge_tools.errors import (
    ArtifactDamagedError,
    ArtifactFolderError,
    ArtifactNotFoundError,
    InvalidCallError,
    StorageError,
)
from forge_tools.model.artifacts import SCHEME, Artifact, ArtifactPage, PageWish
from forge_tools.storage.connection.database import Database
from forge_tools.storage.connection.faults import ForbiddenError
from forge_tools.storage.functions import any_of, from_now
from forge_tools.storage.rows import clean, record_of
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import artifact_owners, artifact_parts, artifacts

UPLOAD_SECONDS = 3600.0
"""An artifact that is not whole is given up when no part has arrived for this long."""

MOST_TRIES = 3
"""How often the parts of an artifact are sent again if others delete it meanwhile."""

kept, owner, stored = artifacts.c, artifact_owners.c, artifact_parts.c

IN_A_FILE = b""  # no packed part is empty
_is_in_a_file = func.length(stored.data) == 0

T = TypeVar("T")
P = ParamSpec("P")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long an artifact stays, in seconds, and how many bytes a session may hold."""

    ttl: float
    quota: int


class StoredArtifacts:
    """Begin, add the parts in any order, finish; `keep` does all three. Before the end, nobody sees anything of it.

    Files appear and are deleted while their artifact's row is locked, so that nobody deletes what somebody else needs.
    """

    def __init__(self, database: Database, folder: Path | None = None) -> None:
        self._database = database
        self._files = None if folder is None else ArtifactFiles(folder)

    async def draft(self, media_type: str) -> Draft:
        """Begin to gather bytes, where they can be kept from."""
        return Draft(media_type) if self._files is None else await self._on_disk(self._files.draft, media_type)

    async def keep(self, new: Artifact, keeping: Keeping, draft: Draft) -> Artifact | None:
        """Store an artifact, given all its bytes; None if others deleted it, repeatedly."""
        for _ in range(MOST_TRIES):
            if done := await self.begin(new, keeping) or await self._send(new, keeping, draft):
                return done
        return None

    async def begin(self, new: Artifact, keeping: Keeping) -> Artifact | None:
        """Announce an artifact. If its bytes are already stored, extend its expiry and return it: no parts are needed.

        An id proves nothing: the caller must have these bytes.
        """
        # `uploaded_by` is named, since its default is for clients.
        row = self._database.upsert(artifacts).values(**_announcement(new), uploaded_by=None)
        later = {"expires_at": from_now(UPLOAD_SECONDS)}
        announced = row.on_conflict_do_update(index_elements=["id"], set_=later, where=~kept.is_whole)

        async def work(connection: AsyncConnection) -> Artifact | None:
            if found := await self._extended(connection, new, keeping):
                return found
            await connection.execute(announced)
            return None

        return await self._evicting(await self._database.write(work), keeping)

    async def _extended(self, connection: AsyncConnection, new: Artifact, keeping: Keeping) -> Artifact | None:
        """Keep a whole artifact for longer; one that lost parts counts as not whole, so that they are sent again."""
        it = update(artifacts).where(kept.id == new.id, kept.is_whole)
        row = (await connection.execute(it.values(expires_at=_lasting(keeping)).returning(artifacts))).one_or_none()
        if row is None:
            return None
        # The id is known to others, who may claim a larger size.
        if not await self._are_all_there(connection, replace(new, size=row.size)):
            await connection.execute(it.values(is_whole=False, expires_at=from_now(UPLOAD_SECONDS)))
            return None
        return await self._own(connection, row, new)

    async def add(self, id: str, part: PackedPart) -> bool:
        """Store one part in a row.

        Returns False if it is not needed any more: somebody else finished the artifact, or it was given up.
        """
        waiting = update(artifacts).where(kept.id == id, ~kept.is_whole).values(expires_at=from_now(UPLOAD_SECONDS))

        async def work(connection: AsyncConnection) -> bool:
            if not (await connection.execute(waiting)).rowcount:
                return False
            await self._put(connection, id, [part])
            return True

        return await self._database.write(work)

    async def finish(self, new: Artifact, keeping: Keeping, draft: Draft | None = None) -> Artifact | None:
        """Make it visible, with a draft as its file; None if parts are missing: begin again."""
        locked = select(kept.id).where(kept.id == new.id).with_for_update()
        whole = (
            update(artifacts)
            .where(kept.id == new.id)
            .values(is_whole=True, size=new.size, expires_at=_lasting(keeping))
            .returning(artifacts)
        )

        async def work(connection: AsyncConnection) -> Artifact | None:
            if await connection.scalar(locked) is None:
                return None
            if draft is not None and self._files is not None:
                if not await self._on_disk(self._files.publish, draft, new.id):
                    return None
                parts = [PackedPart(number, IN_A_FILE, breaks) for number, breaks in enumerate(draft.breaks)]
                await self._put(connection, new.id, parts)
            elif not await self._are_all_there(connection, new):
                return None
            return await self._own(connection, (await connection.execute(whole)).one(), new)

        return await self._evicting(await self._database.write(work), keeping)

    async def _put(self, connection: AsyncConnection, id: str, parts: Sequence[PackedPart]) -> None:
        row = self._database.upsert(artifact_parts)
        facts = {name: row.excluded[name] for name in ("data", "breaks")}
        again = row.on_conflict_do_update(index_elements=["artifact_id", "number"], set_=facts)
        if parts:
            its = [one._asdict() | {"artifact_id": id, "start": one.number * PART_BYTES} for one in parts]
            await connection.execute(again, its)

    async def upload(self, path: Path, *, ttl: float, quota: int, limit: int, session_id: str | None) -> Artifact:
        """Keep a file of this host, one part in memory at a time.

        Raises:
            InvalidCallError: it has more bytes than `limit`, or changed while it was read.
        """
        if self._files is not None:
            await self._on_disk(self._files.prepare)
        with path.open("rb") as file:
            size, changed = _state(file.fileno())
            if size > limit:
                raise InvalidCallError(f"{path} has {size:,} bytes; FORGE_MAX_PART_SIZE allows {limit:,}")
            kind = media_type(file.read(PART_BYTES))
            with await self.draft(kind) as draft:
                while await self._on_disk(draft.copy, file.fileno(), size):
                    pass
                await self._on_disk(draft.end)
                if _state(file.fileno()) != (draft.size, changed):
                    raise InvalidCallError(f"{path} was changed while it was being read. Upload it again")
                new = Artifact(id=draft.id, size=draft.size, media_type=kind, session_id=session_id)
                kept = await self._uploaded(new, Keeping(ttl, quota), draft)
        if kept is None:
            raise StorageError(f"{path} could not be kept: it was deleted meanwhile. Upload it again")
        return kept

    async def _uploaded(self, new: Artifact, keeping: Keeping, draft: Draft) -> Artifact | None:
        try:
            return await self.keep(new, keeping, draft)
        except ForbiddenError:  # a client that may only keep what is its own, and must send all of it
            new = replace(new, id=secrets.token_hex(16) + new.id)
            await self._database.execute(insert(artifacts).values(_announcement(new)))
            return await self._send(new, keeping, draft)

    async def _send(self, new: Artifact, keeping: Keeping, draft: Draft) -> Artifact | None:
        for number in range(count_parts(new.size) if self._files is None else 0):
            if not await self.add(new.id, await asyncio.to_thread(draft.part, number)):
                return None
        return await self.finish(new, keeping, draft)

    async def find(self, id: str, session_id: str | None) -> Artifact | None:
        """Read the metadata of an artifact of that session; None if it has none of that id, or no longer."""
        return next(iter(await self._list(kept.id == id, owner.session_key == session_key(session_id))), None)

    async def ids(self, session_id: str | None, beginning: str, most: int) -> list[str]:
        """List the artifacts of a session whose ids begin with `beginning`, the most recently kept first."""
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
        return await self._list(owner.execution_id == clean(execution_id))

    async def part(self, artifact: Artifact, number: int) -> bytes | None:
        """Read one packed part of an artifact that its session kept; None if it is not there, or no longer."""
        mine = exists().where(owner.artifact_id == artifact.id, owner.session_key == session_key(artifact.session_id))
        query = select(stored.data).where(stored.artifact_id == artifact.id, stored.number == number, mine)
        data = await self._database.scalar(query)
        if data is None or data != IN_A_FILE:
            return None if data is None else bytes(data)
        if self._files is None:
            raise ArtifactFolderError(
                f"{artifact.handle} is kept in a folder that this process does not know. "
                "Set FORGE_ARTIFACT_DIR to the same folder as the workers"
            )
        try:
            return await self._on_disk(self._files.read, artifact.id, number)
        except FileNotFoundError:
            if await self._database.scalar(select(kept.id).where(kept.id == artifact.id)) is None:
                return None
            where = f"its file is missing in {self._files.folder} (FORGE_ARTIFACT_DIR)"
            raise ArtifactDamagedError(f"{artifact.handle} is damaged: {where}. Run the call again") from None

    async def _chunk(self, artifact: Artifact, number: int, *, is_checked: bool = True) -> bytes:
        """Read and unpack one part of an artifact that its session kept; from a file, without a query."""
        data: bytes | None = None
        if self._files is not None:
            with suppress(FileNotFoundError, ArtifactFolderError):  # if it is not in a row, that is said below
                data = await self._on_disk(self._files.read, artifact.id, number)
        if data is None and (data := await self.part(artifact, number)) is None:
            raise StorageError(f"{artifact.handle} expired while it was being read. Run the call again")
        try:
            return unpack(data, number, artifact.size, is_checked=is_checked)
        except ValueError as error:
            raise await self._damaged(artifact, error) from error

    async def page(self, artifact: Artifact, wish: PageWish) -> ArtifactPage:
        """Read a page of what its session kept, without reading everything before it."""
        query = select(stored.breaks).where(stored.artifact_id == artifact.id).order_by(stored.number)
        breaks = list(await self._database.scalars(query))
        return await Pages(artifact, breaks, partial(self._chunk, artifact)).read(wish)

    async def read(self, artifact: Artifact) -> AsyncIterator[bytes]:
        """Yield the bytes of an artifact, one part in memory at a time."""
        try:
            async for data in whole(artifact, partial(self._chunk, artifact, is_checked=False)):
                yield data
        except ValueError as error:
            raise await self._damaged(artifact, error) from error

    async def contents(self, handle: str) -> AsyncIterator[bytes]:
        """Yield the bytes of what `named` finds."""
        async for chunk in self.read(await self.named(handle)):
            yield chunk

    async def named(self, handle: str) -> Artifact:
        """Read the metadata of an artifact of any session, given its handle or its id.

        Raises:
            ArtifactNotFoundError: there is none of that name, or it has expired.
        """
        for found in await self._list(kept.id == clean(handle.removeprefix(SCHEME))):
            return found
        raise ArtifactNotFoundError(f"There is no artifact {handle[:60]}, or it has expired. Run the call again.")

    async def check(self, artifact: Artifact) -> None:
        """Read all of an artifact, which hides it if it is damaged."""
        with suppress(ArtifactDamagedError):
            async for _ in self.read(artifact):
                pass

    async def purge(self, most: int = 100) -> int:
        """Delete expired and unfinished artifacts, each in its own transaction; returns how many."""
        if self._files is not None:
            with suppress(ArtifactFolderError):
                await self._on_disk(self._files.tidy)
        in_files = exists().where(stored.artifact_id == kept.id, _is_in_a_file)
        can_delete = true() if self._files is not None else ~in_files
        overdue = select(kept.id).where(kept.expires_at <= from_now(0.0), can_delete)
        found = await self._database.scalars(overdue.order_by(kept.expires_at).limit(most))
        return sum([await self._purge(one) for one in found])

    async def _purge(self, id: str) -> bool:
        gone = delete(artifacts).where(kept.id == id, kept.expires_at <= from_now(0.0))

        async def work(connection: AsyncConnection) -> bool:
            if not (await connection.execute(gone)).rowcount:
                return False  # somebody else deleted it, or needs it again
            if self._files is not None:
                await self._on_disk(self._files.remove, id)
            await connection.execute(delete(artifact_parts).where(stored.artifact_id == id))
            await connection.execute(delete(artifact_owners).where(owner.artifact_id == id))
            return True

        try:
            return await self._database.write(work)
        except ArtifactFolderError as error:
            # Hide it and retry later, so that others can be deleted meanwhile.
            logger.warning("An expired artifact is not deleted yet", extra={"artifact": id, "error": error.message})
            await self._hide(kept.id == id, kept.expires_at <= from_now(0.0))
            return False

    async def _are_all_there(self, connection: AsyncConnection, artifact: Artifact) -> bool:
        """Return whether no part is missing; files in a folder that this process does not know count as present."""
        expected = stored.artifact_id == artifact.id, stored.number < count_parts(artifact.size)
        in_files = (await connection.scalars(select(_is_in_a_file).where(*expected))).all()
        if len(in_files) < count_parts(artifact.size):
            return False
        return not any(in_files) or self._files is None or await self._on_disk(self._files.is_there, artifact.id)

    async def _on_disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        folder = None if self._files is None else self._files.folder
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and folder is not None and folder.exists():
                raise
            reason = error.strerror or str(error)
            if isinstance(error, FileNotFoundError):
                reason = "it does not exist; copy it with the database, or name where it is"
            raise ArtifactFolderError(
                f"The folder of artifacts {folder} (FORGE_ARTIFACT_DIR) cannot be used: {reason}"
            ) from error

    async def _damaged(self, artifact: Artifact, error: ValueError) -> ArtifactDamagedError:
        """Hide an artifact whose bytes have changed; anybody who has the right bytes may store them again."""
        logger.warning("An artifact is damaged", extra={"artifact": artifact.id, "error": str(error)})
        with suppress(StorageError):  # a client may lack the right to; a worker hides it when it reads it
            await self._hide(kept.id == artifact.id)
        return ArtifactDamagedError(f"{artifact.handle} is damaged: {error}. Run the call again")

    async def _hide(self, *which: ColumnElement[bool]) -> None:
        hidden = update(artifacts).where(*which).values(is_whole=False, expires_at=from_now(UPLOAD_SECONDS))
        await self._database.execute(hidden)

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
        facts = {"execution_id": new.execution_id, "kept_at": from_now(0.0)}
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
        if artifact is None:
            return None
        key = session_key(artifact.session_id)
        latest_first = (owner.kept_at.desc(), owner.artifact_id)
        held = func.sum(owner.size).over(order_by=latest_first).label("held")
        rows = select(owner.artifact_id, held).where(owner.session_key == key).subquery().c
        excess = await self._database.scalars(select(rows.artifact_id).where(rows.held > keeping.quota))
        with suppress(ForbiddenError):  # a client deletes nothing; the next worker that keeps something there does
            for one in excess:
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


def _state(fd: int) -> tuple[int, int]:
    facts = os.fstat(fd)
    return facts.st_size, facts.st_mtime_ns


def _announcement(new: Artifact) -> dict[str, Any]:
    return {
        "id": new.id,
        "size": new.size,
        "media_type": clean(new.media_type),
        "is_whole": False,
        "created_at": from_now(0.0),
        "expires_at": from_now(UPLOAD_SECONDS),
    }


def _lasting(keeping: Keeping) -> ColumnElement[Any]:
    """Return when an artifact expires that is whole from now on: never earlier than before, if it was whole."""
    is_longer = kept.is_whole & (kept.expires_at > from_now(keeping.ttl))
    return case((is_longer, kept.expires_at), else_=from_now(keeping.ttl))


def session_key(session_id: str | None) -> str:
    """Return the session as the key of a row; calls without a session share one."""
    if session_id is None:
        return ""
    return blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
