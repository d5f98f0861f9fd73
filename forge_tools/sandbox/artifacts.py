"""Artifacts for tools and executors: an output kept whole, and one opened like a file of the workspace."""

import asyncio
import logging
import os
import secrets
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from forge_tools.errors import ForgeError, SandboxError
from forge_tools.records import Artifact, ExecutionContext, artifact_id
from forge_tools.records.artifacts import SCHEME
from forge_tools.sandbox.handles import Handle
from forge_tools.sandbox.paths import Workspace
from forge_tools.sandbox.reach import REACH
from forge_tools.sandbox.spools import CHUNK_BYTES, Gathered, Spool
from forge_tools.secrecy import scrubbed_chunks

NOT_FOUND = "ARTIFACT_NOT_FOUND"
UNAVAILABLE = "ARTIFACTS_UNAVAILABLE"

KEEP_SECONDS = 30.0
"""How long a call waits at most for its output to be kept; without that it still has its result."""

_LEFTOVER_SECONDS = 3600.0
_PURGE_SECONDS = 300.0

logger = logging.getLogger(__name__)


async def keep(chunks: AsyncIterator[bytes], context: ExecutionContext, seconds: float) -> dict[str, Any]:
    """Keep an output; returns what the metadata of a result say of it, `artifact` or `artifact_error`. Never fails.

    Nothing is said where this host has no artifacts.
    """
    artifacts = REACH.get().artifacts
    if artifacts is None:
        return {}
    try:
        async with asyncio.timeout(min(seconds, KEEP_SECONDS)):
            return {"artifact": (await artifacts.put(scrubbed_chunks(chunks), context)).handle}
    except TimeoutError:
        reason = f"it could not be stored within {min(seconds, KEEP_SECONDS):.1f}s"
    except ForgeError as error:
        reason = error.message
    except Exception as error:  # noqa: BLE001 whatever keeps it from being kept, the call has its result
        reason = f"{type(error).__name__}: {error}"
    logger.warning("An output is not kept whole", extra={"reason": reason})
    return {"artifact_error": f"The full output was not kept: {reason}"}


async def keep_text(text: str, context: ExecutionContext, seconds: float) -> dict[str, Any]:
    """Keep a text as `keep` does; of one that is larger than an artifact may be, the beginning and the end."""
    artifacts = REACH.get().artifacts
    return await keep(_encoded(text, artifacts.max_bytes), context, seconds) if artifacts is not None else {}


async def _encoded(text: str, limit: int) -> AsyncIterator[bytes]:
    """Half a surrogate pair, which is no character, comes out as an escape."""
    pieces = (
        text[at : at + CHUNK_BYTES].encode("utf-8", "backslashreplace") for at in range(0, len(text), CHUNK_BYTES)
    )
    if len(text) <= limit // 4:  # it fits, whatever it is made of
        for piece in pieces:
            yield piece
        return
    spool = Spool(limit)
    for piece in pieces:
        await asyncio.to_thread(spool.write, piece)
    async for chunk in spool.chunks():
        yield chunk


def is_handle(path: object) -> bool:
    """Whether a tool was given an artifact in place of a path."""
    return isinstance(path, str) and path.startswith(SCHEME)


class ArtifactFile(Handle):
    """An artifact opened for reading; closed at the latest when nobody holds it any more."""

    def __del__(self) -> None:
        self.close()


async def open_artifact(handle: str, context: ExecutionContext, workspace: Workspace) -> ArtifactFile:
    """Open an artifact; it is as good as a file of the workspace.

    Raises:
        SandboxError: this session has none of that name, it has expired, or this host has no artifacts.
    """
    artifacts = REACH.get().artifacts
    if artifacts is None:
        raise SandboxError(
            f"{handle[:60]} cannot be read: this host keeps no artifacts. Run the call again", UNAVAILABLE
        )
    with workspace.open_root() as root:
        return ArtifactFile(await artifacts.open(handle, context), handle, root.root)


def unknown(handle: str) -> SandboxError:
    """The refusal of what is not there, has expired, or is another session's, which nobody shall be able to tell apart."""
    what = f"This session has no artifact {handle[:60]}, or it has expired. Run again the call whose output it was"
    return SandboxError(what, NOT_FOUND)


class FolderArtifacts:
    """Artifacts in a folder of this host, for executors in process: a compressed file for each, and whose it is.

    The folder must not lie where tools can reach it. `ttl` is in seconds; `quota` bounds, in bytes, what a session holds.
    """

    def __init__(
        self, folder: Path, *, max_bytes: int = 64 << 20, quota: int = 1 << 30, ttl: float = 7 * 86_400.0
    ) -> None:
        self.max_bytes = max_bytes
        self._quota = quota
        self._ttl = ttl
        self._files, self._owners = folder / "files", folder / "sessions"
        self._purged_at = float("-inf")
        for part in (folder, self._files, self._owners):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def put(self, chunks: AsyncIterator[bytes], context: ExecutionContext) -> Artifact:
        """Keep the bytes; the same bytes again are kept once, and for longer."""
        gathered = await Gathered.of(chunks, self.max_bytes)
        try:
            await asyncio.to_thread(self._put, gathered, context)
        except OSError as error:
            raise _refusal(error) from error
        finally:
            gathered.close()
        return Artifact(id=gathered.id, size=gathered.size, session_id=context.session_id)

    async def open(self, handle: str, context: ExecutionContext) -> int:
        """Return a descriptor of a file without a name that holds its bytes."""
        found = artifact_id(handle)
        if found is None:
            raise unknown(handle)
        try:
            gathered, changed = await asyncio.to_thread(self._open, found, handle, context)
            return gathered.take(changed)  # not in the thread: nobody would close it for a call that was cancelled
        except FileNotFoundError:
            raise unknown(handle) from None
        except OSError as error:
            raise _refusal(error) from error

    def _put(self, gathered: Gathered, context: ExecutionContext) -> None:
        kept = self._files / gathered.id
        try:
            os.utime(kept)
        except FileNotFoundError:
            self._write(gathered, kept)
        session = self._session(context)
        session.mkdir(mode=0o700, exist_ok=True)
        (session / gathered.id).write_text(str(gathered.size))
        if not kept.exists():  # it was deleted for its age just when it was wanted again
            self._write(gathered, kept)
        self._evict(session)
        if time.monotonic() - self._purged_at > _PURGE_SECONDS:
            self._purged_at = time.monotonic()
            self.purge()

    def _write(self, gathered: Gathered, kept: Path) -> None:
        """It is there, whole, or not there: whoever is killed half way leaves a name that no artifact has."""
        temporary = self._files / f".{secrets.token_hex(8)}"
        packing = zlib.compressobj(1)
        try:
            with temporary.open("xb") as file:
                for start in range(0, gathered.size, CHUNK_BYTES):
                    file.write(packing.compress(gathered.read(start, CHUNK_BYTES)))
                file.write(packing.flush())
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(kept)
        finally:
            temporary.unlink(missing_ok=True)

    def _open(self, found: str, handle: str, context: ExecutionContext) -> tuple[Gathered, float]:
        kept = self._files / found
        changed = kept.stat().st_mtime
        if not (self._session(context) / found).exists() or changed < time.time() - self._ttl:
            raise unknown(handle)
        gathered = Gathered()
        try:
            for chunk in _unpacked(kept):
                gathered.add(chunk)
        except zlib.error:
            raise damaged(handle) from None
        if gathered.id != found:
            raise damaged(handle)
        return gathered, changed

    def purge(self) -> int:
        """Delete what has expired, and what was never finished; returns how many."""
        gone = 0
        for path in self._files.iterdir():
            seconds = _LEFTOVER_SECONDS if path.name.startswith(".") else self._ttl
            with suppress(FileNotFoundError):  # somebody else was quicker
                if path.stat().st_mtime < time.time() - seconds:
                    path.unlink()
                    gone += 1
        for mark in self._owners.glob("*/*"):
            if not (self._files / mark.name).exists():
                mark.unlink(missing_ok=True)
        return gone

    def _evict(self, session: Path) -> None:
        """Take from a session that holds too much what it kept first; what is nobody's any more goes."""
        held = 0
        for mark in _latest_first(session):
            with suppress(FileNotFoundError):  # another call takes it at the same time
                held += int(mark.read_text() or 0)
                if held > self._quota:
                    mark.unlink()
                    if not any(self._owners.glob(f"*/{mark.name}")):
                        (self._files / mark.name).unlink(missing_ok=True)

    def _session(self, context: ExecutionContext) -> Path:
        """Of any id a name that a folder can have."""
        session = context.session_id
        name = (
            "none" if session is None else blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        )
        return self._owners / name


def damaged(handle: str) -> SandboxError:
    """The refusal of bytes that are not those that were kept."""
    return SandboxError(f"{handle} is damaged. Run again the call whose output it was", UNAVAILABLE)


def _latest_first(folder: Path) -> list[Path]:
    dated: list[tuple[int, Path]] = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            dated.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(dated, reverse=True)]


def _unpacked(path: Path) -> Iterator[bytes]:
    unpacking = zlib.decompressobj()
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            while data:
                yield unpacking.decompress(data, CHUNK_BYTES)
                data = unpacking.unconsumed_tail
    yield unpacking.flush()


def _refusal(error: OSError) -> SandboxError:
    return SandboxError(f"The folder of artifacts cannot be used: {os.strerror(error.errno or 0)}", UNAVAILABLE)
