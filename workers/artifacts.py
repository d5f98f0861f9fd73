"""Artifacts on a worker, the engine's side: it answers tools, and keeps what children send once it matches its id."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, ParamSpec, TypeVar

from cryptography.hazmat.primitives.poly1305 import Poly1305

from forge_tools.artifacts.parts import MAX_PACKED_BYTES, PackedPart, PartFiles, breaks_in, count_parts, unpack
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ErrorCode, ForgeError, SandboxError
from forge_tools.model import Artifact, ExecutionContext, artifact_id
from forge_tools.model.artifacts import TEXT
from forge_tools.sandbox.paths.journal import EXECUTION_ID
from forge_tools.sandbox.spools import UnnamedFile
from forge_tools.storage.artifacts import Keeping, StoredArtifacts

_MOST_MEDIA_TYPE = 255

MOST_UNPROVEN = 16
"""How many artifacts a call may send at once; beyond that, the one without a new part for longest is given up."""

T = TypeVar("T")

P = ParamSpec("P")

Message = dict[str, Any]

Do = Callable[[StoredArtifacts, Message, ExecutionContext], Awaitable[Message]]


class Proofs:
    """The artifacts that one call has sent so far. No other call sees them, and they end with the call."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, int], Sent] = {}
        self._is_over = False

    async def begin(self, new: Artifact) -> None:
        """Expect the bytes of an artifact; those that the call has already sent stay."""
        if _key(new) in self._sent:
            return
        sent = await _on_disk(Sent, new)
        if not self._is_over:
            self._sent.setdefault(_key(new), sent)
        while len(self._sent) > MOST_UNPROVEN:
            del self._sent[next(iter(self._sent))]

    async def add(self, new: Artifact, number: int, data: bytes) -> bool:
        """Store the next part separately; False if it is not, or no longer, expected.

        Raises:
            ValueError: it is not the next, or not a part of that artifact.
            SandboxError: there is no room for it.
        """
        sent = self._sent.pop(_key(new), None)
        if sent is None:
            return False
        self._sent[_key(new)] = sent  # the last in the dict is the last to be given up
        await _on_disk(sent.add, number, data)
        return True

    def take(self, new: Artifact) -> "Sent | None":
        """Hand over a complete artifact, now proven; None if parts are missing: begin again.

        Raises:
            SandboxError: its bytes do not match its id.
        """
        sent = self._sent.pop(_key(new), None)
        return sent if sent is not None and sent.is_proven() else None

    def end(self) -> None:
        """Drop everything: each file is closed with the last thread that uses it."""
        self._is_over = True
        self._sent.clear()


class Sent(UnnamedFile):
    """The packed parts of one artifact, in order, in an unnamed file."""

    def __init__(self, new: Artifact) -> None:
        super().__init__()
        self._new = new
        self._digest = blake2b(digest_size=16)
        # Whoever could change the file sees neither key nor marks, so one key does for all parts.
        self._key = os.urandom(32)
        self._parts: list[_Part] = []

    def add(self, number: int, data: bytes) -> None:
        """Write the next part. One already here may come again: the digest of the whole decides if it was right."""
        with self._in_use:  # two threads may send the same part
            if number < len(self._parts):
                return
            if number > len(self._parts):
                raise ValueError(f"part {number} before part {len(self._parts)}")
            chunk = unpack(data, number, self._new.size)
            view = memoryview(data)
            while view:
                view = view[os.pwrite(self.fd, view, self.size + len(data) - len(view)) :]
            self._digest.update(chunk)
            breaks = breaks_in(chunk, self._new.media_type)
            self._parts.append(_Part(self.size, len(data), breaks, Poly1305.generate_tag(self._key, data)))
            self.size += len(data)

    def is_proven(self) -> bool:
        """Return whether it is complete; nothing can be added after that.

        Raises:
            SandboxError: its bytes do not match its id.
        """
        if len(self._parts) < count_parts(self._new.size):
            return False
        if self._digest.hexdigest() != self._new.id:
            raise _refusal(self._new, "the bytes sent do not match its id")
        return True

    async def part(self, number: int) -> PackedPart:
        """Return a part as it was sent.

        Raises:
            SandboxError: it has changed since.
        """
        part = self._parts[number]
        data = await _on_disk(self._read, part)
        if data is None:
            raise _refusal(self._new, "its bytes were changed on this host")
        return PackedPart(number, data, part.breaks)

    def _read(self, part: "_Part") -> bytes | None:
        with self._in_use:
            data = os.pread(self.fd, part.size, part.start)
        # With this user's rights, /proc leads even to unnamed files.
        return data if compare_digest(Poly1305.generate_tag(self._key, data), part.mark) else None


@dataclass(frozen=True, slots=True)
class _Part:
    start: int
    size: int
    breaks: int | None
    mark: bytes


class ArtifactDesk:
    """The engine's side. A request names an operation and an artifact; the engine itself knows whose it is."""

    def __init__(self, settings: Settings) -> None:
        """Create the folder of artifacts, if the settings name one.

        Raises:
            ConfigurationError: it cannot be used.
        """
        _prepare(settings)
        self._max_bytes = max(settings.artifact_max_bytes, min(settings.max_part_size, settings.artifact_quota))
        self._keeping = Keeping(ttl=settings.artifact_ttl, quota=settings.artifact_quota)

    async def answer(self, stored: StoredArtifacts, request: Message, context: ExecutionContext) -> Message:
        """Do what a request wants; a refusal is an answer too."""
        return await _answered(self._do_for_own, stored, request, context)

    async def answer_child(
        self, stored: StoredArtifacts, request: Message, context: ExecutionContext, proofs: Proofs
    ) -> Message:
        """Do so for a call of untrusted code: to keep an artifact it must send all bytes, even if they are stored.

        Otherwise a session that only knows an id could make it its own, and read what another one kept. Until the bytes
        are proven to match the id, they are set aside in the call's `proofs`, where they affect nobody.
        """
        return await _answered(partial(self._do_for_child, proofs), stored, request, context)

    async def _do_for_own(self, stored: StoredArtifacts, request: Message, context: ExecutionContext) -> Message:
        if request["want"] == "keep":  # its parts come from this process
            return _facts(await stored.keep(self._artifact(request, context), self._keeping, request["part"]))
        return await self._do(stored, request, context)

    async def _do(self, stored: StoredArtifacts, request: Message, context: ExecutionContext) -> Message:
        new = self._artifact(request, context)
        match request["want"]:
            case "find":
                return _facts(await stored.find(new.id, new.session_id))
            case "part":
                data_or_none = await stored.part(new, self._number(request, new))
                return {} if data_or_none is None else {"data": data_or_none}
            case "check":
                if found := await stored.find(new.id, new.session_id):
                    await stored.check(found)
                return {}
            case other:
                raise ValueError(other)

    async def _do_for_child(
        self, proofs: Proofs, stored: StoredArtifacts, request: Message, context: ExecutionContext
    ) -> Message:
        new = self._artifact(request, context)
        match request["want"]:
            case "begin":
                kept = await stored.renew(new, self._keeping)
                if kept is None:
                    await proofs.begin(new)
                return _facts(kept)
            case "add":
                return {"is_waiting": await proofs.add(new, *self._part(request, new))}
            case "finish":
                sent = proofs.take(new)
                return {} if sent is None else _facts(await stored.keep(new, self._keeping, sent.part))
            case _:
                return await self._do(stored, request, context)

    def _artifact(self, request: Message, context: ExecutionContext) -> Artifact:
        size = int(request["size"])
        new = Artifact(
            id=str(request["id"]),
            size=size,
            media_type=str(request.get("media_type", TEXT))[:_MOST_MEDIA_TYPE],
            session_id=context.session_id,
            execution_id=context.metadata.get(EXECUTION_ID),
        )
        if artifact_id(new.handle) is None or not 0 <= size <= self._max_bytes:
            raise ValueError(new.id[:60])
        return new

    def _number(self, request: Message, new: Artifact) -> int:
        number = int(request["number"])
        if not 0 <= number < count_parts(new.size):
            raise ValueError(f"part {number}")
        return number

    def _part(self, request: Message, new: Artifact) -> tuple[int, bytes]:
        number, data = self._number(request, new), request["data"]
        if not isinstance(data, bytes) or len(data) > MAX_PACKED_BYTES:
            raise ValueError(f"part {number}")
        return number, data


def _prepare(settings: Settings) -> None:
    if settings.artifact_dir is not None:
        try:
            PartFiles(settings.artifact_dir).prepare()
        except OSError as error:
            what = f"FORGE_ARTIFACT_DIR: {settings.artifact_dir} cannot be used on this host: {error.strerror or error}"
            raise ConfigurationError(f"{what}. Name a folder that only this user can write to.") from error


async def _answered(do: Do, stored: StoredArtifacts, request: Message, context: ExecutionContext) -> Message:
    try:
        return await do(stored, request, context)
    except ForgeError as error:
        return {"error": error.message, "code": error.code}
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # it was not written by our code
        return {"error": f"Malformed request: {error!r}", "code": ErrorCode.VALIDATION_ERROR}


def _facts(artifact: Artifact | None) -> Message:
    if artifact is None or artifact.created_at is None or artifact.expires_at is None:
        return {}
    created, expires = artifact.created_at.isoformat(), artifact.expires_at.isoformat()
    facts = {"size": artifact.size, "digest": artifact.digest or artifact.id}
    return facts | {"created_at": created, "expires_at": expires}


def _key(new: Artifact) -> tuple[str, int]:
    return new.id, new.size


def _refusal(new: Artifact, reason: str) -> SandboxError:
    return SandboxError(f"{new.handle} is not kept: {reason}. Run the call again", ErrorCode.VALIDATION_ERROR)


async def _on_disk(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise SandboxError(f"The output cannot be stored on this host: {reason}", ErrorCode.TOOL_ERROR) from error
