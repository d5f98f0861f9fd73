"""The packed parts of artifacts, in rows or in a folder of files."""

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import ParamSpec, TypeVar

from sqlalchemy import ColumnElement, delete, exists, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.artifacts.parts import PART_BYTES, PackedPart, PartFiles, count_parts
from forge_tools.errors import ArtifactDamagedError, ArtifactFolderError
from forge_tools.model import Artifact
from forge_tools.storage.connection.database import Database
from forge_tools.storage.tables import artifact_owners, artifact_parts, artifacts

part, owner = artifact_parts.c, artifact_owners.c

T = TypeVar("T")
P = ParamSpec("P")

_IN_A_FILE = b""  # no packed part is empty
_is_in_a_file = func.length(part.data) == 0


class Parts:
    """Packed parts. Methods that take a connection need the artifact's row locked in its transaction.

    Files are written and deleted while that lock is held, so that nobody deletes what somebody else is writing.
    """

    def __init__(self, database: Database, folder: Path | None) -> None:
        self._database = database
        self._files = None if folder is None else PartFiles(folder)

    async def write(self, connection: AsyncConnection, id: str, new: PackedPart) -> None:
        """Store a part."""
        if self._files is not None:
            await self._on_disk(self._files.write, id, new.number, new.data)
            new = new._replace(data=_IN_A_FILE)
        row = self._database.upsert(artifact_parts)
        facts = {name: row.excluded[name] for name in ("data", "breaks")}
        values = new._asdict() | {"artifact_id": id, "start": new.number * PART_BYTES}
        await connection.execute(
            row.values(values).on_conflict_do_update(index_elements=["artifact_id", "number"], set_=facts)
        )

    async def are_all_there(self, connection: AsyncConnection, artifact: Artifact) -> bool:
        """Return whether no part is missing; files in a folder that this process does not know count as present."""
        expected = part.artifact_id == artifact.id, part.number < count_parts(artifact.size)
        rows = (await connection.execute(select(part.number, _is_in_a_file).where(*expected))).all()
        in_files = [number for number, is_in_a_file in rows if is_in_a_file]
        if len(rows) < count_parts(artifact.size):
            return False
        return not in_files or self._files is None or await self._on_disk(self._files.are_there, artifact.id, in_files)

    async def read(self, artifact: Artifact, number: int) -> bytes | None:
        """Read a part of what its session kept; None if it is not there, or no longer.

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
        """Return how many lines end in each part; None for a part whose lines were not counted."""
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
        """The condition for artifacts whose bytes this process can reach."""
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
    """Return the session as the key of a row; calls without a session share one."""
    if session_id is None:
        return ""
    return blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
