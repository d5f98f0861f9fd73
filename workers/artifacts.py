"""Artifacts on a worker, the engine's side: it answers tools, and keeps the bytes of files that they hand over."""

import asyncio
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from forge_tools.artifacts.parts import ArtifactFiles, count_parts, folder_of
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ErrorCode, ForgeError, SandboxError
from forge_tools.model.artifacts import TEXT, Artifact, artifact_id
from forge_tools.model.calls import ExecutionContext
from forge_tools.sandbox.paths.confinement import Descriptor
from forge_tools.sandbox.spools import TOO_LARGE
from forge_tools.storage.artifacts import Keeping, StoredArtifacts

_MOST_MEDIA_TYPE = 255

Message = dict[str, Any]


class ArtifactDesk:
    """The engine's side. A request names an operation and an artifact; the engine itself knows whose it is."""

    def __init__(self, settings: Settings) -> None:
        """Create the folder of artifacts, if the settings name one.

        Raises:
            ConfigurationError: it cannot be used.
        """
        if (folder := folder_of(settings)) is not None:
            try:
                ArtifactFiles(folder).prepare()
            except OSError as error:
                why = f"{folder} cannot be used on this host: {error.strerror or error}"
                raise ConfigurationError(
                    f"FORGE_ARTIFACT_DIR: {why}. Name a folder that only this user can write to."
                ) from error
        # The parts of a result become artifacts too, and have a limit of their own.
        self._max_bytes = max(settings.artifact_max_bytes, min(settings.max_part_size, settings.artifact_quota))
        self._keeping = Keeping(ttl=settings.artifact_ttl, quota=settings.artifact_quota)

    async def answer(self, stored: StoredArtifacts, request: Message, context: ExecutionContext) -> Message:
        """Do what a request wants; a refusal is an answer too. Untrusted code may have written it.

        To keep an artifact it must hand over a file with all bytes, even if they are stored: otherwise a session that
        only knows an id could make it its own, and read what another one kept.
        """
        try:
            if request["want"] == "keep":
                return await self._keep(stored, request, context)
            return await self._read(stored, request, self._artifact(request, context))
        except ForgeError as error:
            return {"error": error.message, "code": error.code}
        except (KeyError, TypeError, ValueError, OverflowError) as error:  # it was not written by our code
            return {"error": f"Malformed request: {error!r}", "code": ErrorCode.VALIDATION_ERROR}

    async def _keep(self, stored: StoredArtifacts, request: Message, context: ExecutionContext) -> Message:
        file, media_type = request["file"], str(request.get("media_type", TEXT))[:_MOST_MEDIA_TYPE]
        if not isinstance(file, Descriptor):
            raise TypeError("file")
        try:
            with await stored.draft(media_type) as draft:
                size = await asyncio.to_thread(_size, file.fd)
                if size > self._max_bytes:
                    raise SandboxError(f"The output is larger than {self._max_bytes:,} bytes", TOO_LARGE)
                while await asyncio.to_thread(draft.copy, file.fd, size):
                    pass
                await asyncio.to_thread(draft.end)
                new = Artifact(
                    id=draft.id,
                    size=draft.size,
                    media_type=media_type,
                    session_id=context.session_id,
                    execution_id=context.execution_id,
                )
                return _facts(await stored.keep(new, self._keeping, draft))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            said = f"The output cannot be stored on this host: {reason}"
            raise SandboxError(said, ErrorCode.TOOL_ERROR) from error

    async def _read(self, stored: StoredArtifacts, request: Message, it: Artifact) -> Message:
        match request["want"]:
            case "find":
                return _facts(await stored.find(it.id, it.session_id))
            case "part":
                number = int(request["number"])
                if not 0 <= number < count_parts(it.size):
                    raise ValueError(f"part {number}")
                data_or_none = await stored.part(it, number)
                return {} if data_or_none is None else {"data": data_or_none}
            case "check":
                if found := await stored.find(it.id, it.session_id):
                    await stored.check(found)
                return {}
            case other:
                raise ValueError(other)

    def _artifact(self, request: Message, context: ExecutionContext) -> Artifact:
        it = Artifact(id=str(request["id"]), size=int(request["size"]), session_id=context.session_id)
        if artifact_id(it.handle) is None or not 0 <= it.size <= self._max_bytes:
            raise ValueError(it.id[:60])
        return it


def _size(fd: int) -> int:
    """Return how many bytes a temporary file has. No other is read: a file system of a child's own might never answer.

    Raises:
        SandboxError: it is not one.
    """
    folder = os.open(tempfile.gettempdir(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _mount(fd) == _mount(folder) and stat.S_ISREG((facts := os.fstat(fd)).st_mode):
            return facts.st_size
    finally:
        os.close(folder)
    raise SandboxError(f"The output is not in a file below {tempfile.gettempdir()}", ErrorCode.VALIDATION_ERROR)


def _mount(fd: int) -> str:
    """Ask the kernel, not the file system."""
    return Path(f"/proc/self/fdinfo/{fd}").read_text().partition("mnt_id:")[2].split()[0]


def _facts(artifact: Artifact | None) -> Message:
    if artifact is None or artifact.created_at is None or artifact.expires_at is None:
        return {}
    created, expires = artifact.created_at.isoformat(), artifact.expires_at.isoformat()
    return {"id": artifact.id, "size": artifact.size, "created_at": created, "expires_at": expires}
