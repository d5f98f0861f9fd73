"""Artifacts on a worker, the engine's side: it answers tools, and keeps what children send once it matches its id."""

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from forge_tools.artifacts.parts import PART_BYTES, PackedPart, PartFiles, count_parts
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ErrorCode, ForgeError, SandboxError
from forge_tools.model import Artifact, ExecutionContext, artifact_id
from forge_tools.model.artifacts import TEXT
from forge_tools.sandbox.paths.journal import EXECUTION_ID
from forge_tools.sandbox.spools import Gathered
from forge_tools.storage.artifacts import Keeping, StoredArtifacts

_MOST_MEDIA_TYPE = 255

MOST_UNPROVEN = 16
"""How many artifacts a call may send at once; beyond that, the one without a new part for longest is given up."""

T = TypeVar("T")

P = ParamSpec("P")

Message = dict[str, Any]


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
        await _on_disk(sent.take_part, number, data)
        return True

    def take(self, new: Artifact) -> "Sent | None":
        """Hand over a complete artifact, now proven; None if parts are missing: begin again.

        Raises:
            SandboxError: its bytes do not match its id.
        """
        sent = self._sent.pop(_key(new), None)
        if sent is None or not sent.is_whole:
            return None
        if sent.id != new.id:
            raise SandboxError(
                f"{new.handle} is not kept: the bytes sent do not match its id. Run the call again",
                ErrorCode.VALIDATION_ERROR,
            )
        return sent

    def end(self) -> None:
        """Drop everything: each file is closed with the last thread that uses it."""
        self._is_over = True
        self._sent.clear()


class Sent(Gathered):
    """The bytes of one artifact, as a child sends them: part by part, in order."""

    def __init__(self, new: Artifact) -> None:
        super().__init__()
        self._new = new
        self._next = 0
        self._taking = threading.Lock()

    @property
    def is_whole(self) -> bool:
        return self._next == count_parts(self._new.size)

    def take_part(self, number: int, data: bytes) -> None:
        """Write the next part. One already here may come again: the digest of the whole decides if it was right."""
        with self._taking:  # two threads may send the same part
            if number < self._next:
                return
            if number > self._next or len(data) != min(PART_BYTES, self._new.size - number * PART_BYTES):
                raise ValueError(f"{len(data):,} bytes for part {number}, after {self._next} parts")
            self.add(data)
            self._next += 1


async def packed(gathered: Gathered, media_type: str, number: int) -> PackedPart:
    """Return one part of these bytes, as the store keeps it."""
    return await asyncio.to_thread(
        lambda: PackedPart.of(number, gathered.read(number * PART_BYTES, PART_BYTES), media_type)
    )


class ArtifactDesk:
    """The engine's side. A request names an operation and an artifact; the engine itself knows whose it is."""

    def __init__(self, settings: Settings) -> None:
        """Create the folder of artifacts, if the settings name one.

        Raises:
            ConfigurationError: it cannot be used.
        """
        if settings.artifact_dir is not None:
            try:
                PartFiles(settings.artifact_dir).prepare()
            except OSError as error:
                why = f"{settings.artifact_dir} cannot be used on this host: {error.strerror or error}"
                raise ConfigurationError(
                    f"FORGE_ARTIFACT_DIR: {why}. Name a folder that only this user can write to."
                ) from error
        self._max_bytes = max(settings.artifact_max_bytes, min(settings.max_part_size, settings.artifact_quota))
        self._keeping = Keeping(ttl=settings.artifact_ttl, quota=settings.artifact_quota)

    async def answer(
        self, stored: StoredArtifacts, request: Message, context: ExecutionContext, proofs: Proofs | None = None
    ) -> Message:
        """Do what a request wants; a refusal is an answer too.

        A call of untrusted code has `proofs`. To keep an artifact it must send all bytes, even if they are stored:
        otherwise a session that only knows an id could make it its own, and read what another one kept. Until the bytes
        are proven to match the id, they are set aside in its proofs, where they affect nobody.
        """
        try:
            new = self._artifact(request, context)
            if proofs is None and request["want"] == "keep":  # its parts come from this process
                return _facts(await stored.keep(new, self._keeping, request["part"]))
            if proofs is not None and request["want"] in {"begin", "add", "finish"}:
                return await self._prove(stored, request, new, proofs)
            return await self._read(stored, request, new)
        except ForgeError as error:
            return {"error": error.message, "code": error.code}
        except (KeyError, TypeError, ValueError, OverflowError) as error:  # it was not written by our code
            return {"error": f"Malformed request: {error!r}", "code": ErrorCode.VALIDATION_ERROR}

    async def _read(self, stored: StoredArtifacts, request: Message, new: Artifact) -> Message:
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

    async def _prove(self, stored: StoredArtifacts, request: Message, new: Artifact, proofs: Proofs) -> Message:
        if request["want"] == "begin":
            kept = await stored.renew(new, self._keeping)
            if kept is None:
                await proofs.begin(new)
            return _facts(kept)
        if request["want"] == "add":
            number, data = self._number(request, new), request["data"]
            if not isinstance(data, bytes):
                raise TypeError("data")
            return {"is_waiting": await proofs.add(new, number, data)}
        sent = proofs.take(new)
        return (
            {} if sent is None else _facts(await stored.keep(new, self._keeping, partial(packed, sent, new.media_type)))
        )

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


def _facts(artifact: Artifact | None) -> Message:
    if artifact is None or artifact.created_at is None or artifact.expires_at is None:
        return {}
    created, expires = artifact.created_at.isoformat(), artifact.expires_at.isoformat()
    return {"size": artifact.size, "created_at": created, "expires_at": expires}


def _key(new: Artifact) -> tuple[str, int]:
    return new.id, new.size


async def _on_disk(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise SandboxError(f"The output cannot be stored on this host: {reason}", ErrorCode.TOOL_ERROR) from error
