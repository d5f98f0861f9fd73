"""Artifacts for tools and executors: an output stored whole, and opened like a file of the workspace."""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from forge_tools.artifacts.parts import ArtifactFiles, Draft, unpack
from forge_tools.artifacts.reader import Pages, whole
from forge_tools.errors import ForgeError, SandboxError
from forge_tools.model.artifacts import SCHEME, TEXT, Artifact, ArtifactPage, PageWish, artifact_id
from forge_tools.model.calls import ExecutionContext
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.processes.output import scrubbed_chunks
from forge_tools.sandbox.reach import REACH
from forge_tools.sandbox.spools import CHUNK_BYTES, Gathered, Recent, Spool, fill

NOT_FOUND = "ARTIFACT_NOT_FOUND"
UNAVAILABLE = "ARTIFACTS_UNAVAILABLE"

KEEP_SECONDS = 30.0
"""How long a call waits at most for its output to be stored; after that it still has its result."""

_LEFTOVER_SECONDS = 3600.0
_PURGE_SECONDS = 300.0

logger = logging.getLogger(__name__)


async def keep_text(text: str | Spool, context: ExecutionContext, seconds: float) -> dict[str, Any]:
    """Store an output; if it is larger than an artifact may be, store its beginning and end. Never fails.

    Returns metadata for the result, `artifact` or `artifact_error`; empty if this host has no artifacts. `artifact_holds`
    says which part is stored if it is not all. A spool already fits, except for the replacements of secrets in it.
    """
    artifacts = REACH.get().artifacts
    if artifacts is None:
        return {}
    whole = _encoded(text) if isinstance(text, str) else text.chunks()
    fits = not isinstance(text, str) or len(text) <= artifacts.max_bytes // 6  # bytes that a lone surrogate takes
    clean = scrubbed_chunks(whole)
    spools = [] if isinstance(text, str) else [text]
    seconds = min(seconds, KEEP_SECONDS)
    try:
        if not (fits and clean is whole):
            spools.append(Spool(artifacts.max_bytes))
            clean = _through(spools[-1], clean)
        async with asyncio.timeout(seconds):
            handle = (await artifacts.put(clean, context)).handle
        holds = next((spool.holds for spool in spools if spool.holds), None)
        return {"artifact": handle} | ({"artifact_holds": holds} if holds else {})
    except TimeoutError:
        reason = f"it could not be stored within {seconds:.1f}s"
    except ForgeError as error:
        reason = error.message
    except Exception as error:  # noqa: BLE001 whatever keeps it from being kept, the call has its result
        reason = f"{type(error).__name__}: {error}"
    logger.warning("An output is not kept completely", extra={"reason": reason})
    return {"artifact_error": f"The full output was not kept: {reason}"}


async def _encoded(text: str) -> AsyncIterator[bytes]:
    for at in range(0, len(text), CHUNK_BYTES):
        yield text[at : at + CHUNK_BYTES].encode("utf-8", "backslashreplace")


async def _through(spool: Spool, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the beginning and the end of what is longer than the spool may be."""
    async for chunk in chunks:
        await asyncio.to_thread(spool.write, chunk)
    async for chunk in spool.chunks():
        yield chunk


async def open_artifact(handle: str, context: ExecutionContext, workspace: Workspace) -> Handle:
    """Open an artifact; the result behaves like a file of the workspace."""
    artifacts = REACH.get().artifacts
    if artifacts is None:
        what = f"{handle[:60]} cannot be read: this host does not keep artifacts. Run the call again"
        raise SandboxError(what, UNAVAILABLE)
    with workspace.open_root() as root:
        return Handle(await artifacts.open(handle, context), handle, root.root)


def unknown(handle: str) -> SandboxError:
    """Refuse an artifact that is missing, expired or another session's; callers must not be able to tell which."""
    what = f"This session has no artifact {handle[:60]}, or it has expired. Repeat the call that produced it"
    return SandboxError(what, NOT_FOUND)


class FolderArtifacts:
    """Artifacts in a folder of this host, for executors in process: the bytes as `ArtifactFiles`, and their owners.

    The folder must be out of reach of tools. `ttl` is in seconds; `quota` limits the bytes that a session holds.
    """

    def __init__(
        self, folder: Path, *, max_bytes: int = 64 << 20, quota: int = 1 << 30, ttl: float = 7 * 86_400.0
    ) -> None:
        self.max_bytes = min(max_bytes, quota)
        self._quota = quota
        self._ttl = ttl
        self._files, self._owners = ArtifactFiles(folder / "files"), folder / "sessions"
        self._lock, self._mark = folder / "lock", folder / "mark"
        self._recent = Recent()
        self._purged_at = float("-inf")
        for part in (folder, self._files.folder, self._owners):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def put(
        self,
        chunks: AsyncIterator[bytes],
        context: ExecutionContext,
        *,
        limit: int | None = None,
        media_type: str = TEXT,
    ) -> Artifact:
        """Store the bytes; the same bytes again are stored once, and kept longer."""
        try:
            with await asyncio.to_thread(self._files.draft, media_type) as draft:
                await fill(draft, chunks, min(limit or self.max_bytes, self._quota))
                await asyncio.to_thread(self._put, draft, context)
        except OSError as error:
            raise _refusal(error) from error
        return Artifact(id=draft.id, size=draft.size, media_type=media_type, session_id=context.session_id)

    async def open(self, handle: str, context: ExecutionContext) -> int:
        """Return a descriptor of an unnamed file with its bytes; recently read artifacts are unpacked already."""
        found = artifact_id(handle)
        if found is None:
            raise unknown(handle)
        async with self._refusing(found):
            size, changed = await asyncio.to_thread(self._find, found, context.session_id)
            if (fd := self._recent.open(found)) is not None:
                return fd
            it = Artifact(id=found, size=size)
            gathered = await fill(Gathered(), whole(it, partial(self._chunk, it)), size)
            fd = gathered.take(changed)
            self._recent.add(found, fd)
            return fd

    async def find(self, id: str, session_id: str | None) -> Artifact | None:
        """Return the record of an artifact of that session; None if it has none of that id, or no longer."""
        async with self._refusing(id):
            try:
                size, _ = await asyncio.to_thread(self._find, id, session_id)
            except FileNotFoundError:
                return None
            return Artifact(id=id, size=size, session_id=session_id)

    async def ids(self, session_id: str | None, beginning: str, most: int) -> list[str]:
        """List the ids of a session's artifacts that begin like this, the most recently kept first."""
        return (await asyncio.to_thread(self._ids, session_id, beginning))[:most]

    async def read(self, artifact: Artifact) -> AsyncIterator[bytes]:
        """Yield the bytes of what `find` returned, one part in memory at a time."""
        async with self._refusing(artifact.id):
            async for data in whole(artifact, partial(self._chunk, artifact)):
                yield data

    async def page(self, artifact: Artifact, wish: PageWish) -> ArtifactPage:
        return await Pages(artifact, [], partial(self._chunk, artifact)).read(wish)

    def purge(self) -> int:
        """Delete what has expired, and what was never finished; return how many."""
        gone = 0
        with self._locked():
            self._files.tidy()
            for id_ in self._files.ids():
                is_owned = any(self._owners.glob(f"*/{id_}"))
                seconds = self._ttl if is_owned else min(self._ttl, _LEFTOVER_SECONDS)
                if self._files.touched(id_) < time.time() - seconds:
                    self._files.remove(id_)
                    gone += 1
            there = set(self._files.ids())
            for mark in self._owners.glob("*/*"):
                if mark.name not in there:
                    mark.unlink(missing_ok=True)
        return gone

    def _put(self, draft: Draft, context: ExecutionContext) -> None:
        """Record the owner last: after a kill half way, nobody sees the remains."""
        draft.end()
        session = self._session(context.session_id)
        with self._locked():
            if not self._files.is_there(draft.id):
                self._files.publish(draft, draft.id)
            self._files.touch(draft.id)
            session.mkdir(mode=0o700, exist_ok=True)
            self._mark.write_text(str(draft.size))
            self._mark.replace(session / draft.id)  # a concurrent reader reads either version
            self._evict(session, draft.id)
        if time.monotonic() - self._purged_at > _PURGE_SECONDS:
            self._purged_at = time.monotonic()
            self.purge()

    async def _chunk(self, artifact: Artifact, number: int) -> bytes:
        async with self._refusing(artifact.id):
            data = await asyncio.to_thread(self._files.read, artifact.id, number)
            return unpack(data, number, artifact.size)

    def _find(self, found: str, session_id: str | None) -> tuple[int, float]:
        size, changed = int((self._session(session_id) / found).read_text() or 0), self._files.touched(found)
        if changed < time.time() - self._ttl:
            raise FileNotFoundError
        return size, changed

    def _ids(self, session_id: str | None, beginning: str) -> list[str]:
        found = list[tuple[float, str]]()
        for mark in self._session(session_id).glob(f"{beginning}*") if beginning.isalnum() or not beginning else ():
            with suppress(FileNotFoundError):  # it expired, or somebody deletes it
                self._find(mark.name, session_id)
                found.append((mark.stat().st_mtime, mark.name))
        return [name for _, name in sorted(found, reverse=True)]

    @asynccontextmanager
    async def _refusing(self, found: str) -> AsyncIterator[None]:
        """Turn errors into refusals. Damaged bytes are dropped, so that the right ones can be stored again."""
        try:
            yield
        except FileNotFoundError:
            raise unknown(f"{SCHEME}{found}") from None
        except ValueError:
            await asyncio.to_thread(self._drop, found)
            raise damaged(f"{SCHEME}{found}") from None
        except OSError as error:
            raise _refusal(error) from error

    def _drop(self, found: str) -> None:
        with self._locked():
            self._files.remove(found)

    def _evict(self, session: Path, latest: str) -> None:
        held = 0
        marks = sorted(session.iterdir(), key=lambda mark: (mark.name == latest, mark.stat().st_mtime_ns), reverse=True)
        for mark in marks:
            held += int(mark.read_text() or 0)  # a power cut may have emptied it
            if held > self._quota:
                mark.unlink()
                if not any(self._owners.glob(f"*/{mark.name}")):
                    self._files.remove(mark.name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude all other processes, so that none deletes what another is about to claim."""
        with os.fdopen(os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _session(self, session_id: str | None) -> Path:
        """Map any session id to a valid folder name."""
        if session_id is None:
            return self._owners / "none"
        return self._owners / blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def damaged(handle: str) -> SandboxError:
    """Refuse bytes that differ from those that were stored."""
    return SandboxError(f"{handle} is damaged. Repeat the call that produced it", UNAVAILABLE)


def _refusal(error: OSError) -> SandboxError:
    return SandboxError(f"The folder of artifacts cannot be used: {error.strerror or error}", UNAVAILABLE)
