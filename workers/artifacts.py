"""Artifacts on a worker: the side of the tools, which has no database, asks the side of the engine, which has."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any

from forge_tools.artifacts.parts import MAX_PACKED_BYTES, PART_BYTES, PartFiles, count_parts, pack, unpack
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ErrorCode, ForgeError, SandboxError
from forge_tools.model import Artifact, ExecutionContext, artifact_id
from forge_tools.model.artifacts import TEXT
from forge_tools.sandbox.artifacts import damaged, unknown
from forge_tools.sandbox.paths.journal import EXECUTION_ID
from forge_tools.sandbox.spools import Gathered, Recent
from forge_tools.storage.artifacts import Keeping, StoredArtifacts
from workers.proofs import Proofs, Sent
from workers.remote_store import RemoteStore

MOST_TRIES = 3
_MOST_MEDIA_TYPE = 255

Message = dict[str, Any]
Ask = Callable[[Message, ExecutionContext], Awaitable[Message]]
"""Sends a request of a call to the engine, wherever that is, and returns its answer."""

Do = Callable[[StoredArtifacts, Message, ExecutionContext], Awaitable[Message]]


class ArtifactDesk:
    """The engine's side. A request names what it wants, of which artifact; whose it is the engine knows by itself."""

    def __init__(self, settings: Settings) -> None:
        """Make the folder of artifacts where the settings name one.

        Raises:
            ConfigurationError: it cannot be used.
        """
        _prepare(settings)
        self._max_bytes = max(settings.artifact_max_bytes, min(settings.max_part_size, settings.artifact_quota))
        self._keeping = Keeping(ttl=settings.artifact_ttl, quota=settings.artifact_quota)

    async def answer(self, stored: StoredArtifacts, request: Message, context: ExecutionContext) -> Message:
        """Do what a request wants; what it cannot have is an answer too."""
        return await _answered(self._do, stored, request, context)

    async def answer_child(
        self, stored: StoredArtifacts, request: Message, context: ExecutionContext, proofs: Proofs
    ) -> Message:
        """Do so for a call of code that is not trusted: to keep an artifact it has to send all of its bytes, be they here or not.

        A session that has only heard of an id could otherwise make it its own, and read what another one kept. Until they
        are proven to be what the id says they are set aside in the call's `proofs`, where they are in nobody's way.
        """
        return await _answered(partial(self._do_for_child, proofs), stored, request, context)

    async def _do(self, stored: StoredArtifacts, request: Message, context: ExecutionContext) -> Message:
        new = self._artifact(request, context)
        match request["want"]:
            case "begin":
                return _facts(await stored.begin(new, self._keeping))
            case "add":
                number, data = self._part(request, new)
                return {"is_waiting": await stored.add(new.id, number, data, int(request["breaks"]))}
            case "finish":
                return _facts(await stored.finish(new, self._keeping))
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
                return {} if sent is None else _facts(await self._keep(stored, new, sent))
            case _:
                return await self._do(stored, request, context)

    async def _keep(self, stored: StoredArtifacts, new: Artifact, sent: Sent) -> Artifact | None:
        """Keep what is proven; None if others deleted it meanwhile, again and again."""
        for _ in range(MOST_TRIES):
            kept = await stored.begin(new, self._keeping)
            if kept is None and await _add_all(stored, new, sent):
                kept = await stored.finish(new, self._keeping)
            if kept is not None:
                return kept
        return None

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


def ask_engine(desk: ArtifactDesk, store: RemoteStore) -> Ask:
    """Have the engine of this process answer requests of its own tools, whose code is trusted."""

    async def ask(request: Message, context: ExecutionContext) -> Message:
        return await store.ask(lambda opened: desk.answer(opened.artifacts, request, context))

    return ask


class WorkerArtifacts:
    """The side of the tools: bytes are hashed and compressed here, and sent one part at a time."""

    def __init__(self, max_bytes: int, ask: Ask) -> None:
        self.max_bytes = max_bytes
        self.ask = ask
        self._recent = Recent()

    async def put(
        self,
        chunks: AsyncIterator[bytes],
        context: ExecutionContext,
        *,
        limit: int | None = None,
        media_type: str = TEXT,
    ) -> Artifact:
        """Keep the bytes; the same bytes again are kept once, and for longer."""
        gathered = await Gathered.of(chunks, limit or self.max_bytes)
        try:
            for _ in range(MOST_TRIES):
                if kept := await self._try_to_put(gathered, context, media_type):
                    return kept
        finally:
            gathered.close()
        raise SandboxError("The output could not be kept: others deleted it meanwhile. Try again", ErrorCode.TOOL_ERROR)

    async def open(self, handle: str, context: ExecutionContext) -> int:
        """Return a descriptor of a file without a name that holds its bytes; they are fetched once for several calls."""
        found = artifact_id(handle)
        if found is None:
            raise unknown(handle)
        facts = await self._asked("find", context, id=found, size=0)
        if not facts:
            raise unknown(handle)
        if (fd := self._recent.open(found)) is not None:
            return fd
        try:
            fetched = await self._fetch(handle, found, facts["size"], context)
            fd = fetched.take(datetime.fromisoformat(facts["created_at"]).timestamp())
            self._recent.add(found, fd)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise SandboxError(f"{handle} cannot be fetched to this host: {reason}", ErrorCode.TOOL_ERROR) from error
        return fd

    async def _try_to_put(self, gathered: Gathered, context: ExecutionContext, media_type: str) -> Artifact | None:
        what = {"id": gathered.id, "size": gathered.size, "media_type": media_type}
        facts = await self._asked("begin", context, **what)
        if not facts:
            for number in range(count_parts(gathered.size)):
                data, breaks = await asyncio.to_thread(_packed, gathered, number, media_type)
                added = await self._asked("add", context, **what, number=number, data=data, breaks=breaks)
                if not added["is_waiting"]:
                    return None  # somebody else was quicker, or it was given up
            facts = await self._asked("finish", context, **what)
        if not facts:
            return None
        return Artifact(
            id=gathered.id,
            size=gathered.size,
            media_type=media_type,
            session_id=context.session_id,
            created_at=datetime.fromisoformat(facts["created_at"]),
            expires_at=datetime.fromisoformat(facts["expires_at"]),
        )

    async def _fetch(self, handle: str, found: str, size: int, context: ExecutionContext) -> Gathered:
        gathered = Gathered()
        try:
            for number in range(count_parts(size)):
                answer = await self._asked("part", context, id=found, size=size, number=number)
                if not answer:
                    raise unknown(handle)
                await asyncio.to_thread(_unpack_into, gathered, answer["data"], number, size)
            if gathered.id != found:
                raise ValueError("other bytes than the id says")
        except ValueError:
            gathered.close()
            await self._asked("check", context, id=found, size=0)
            raise damaged(handle) from None
        except BaseException:
            gathered.close()
            raise
        return gathered

    async def _asked(self, want: str, context: ExecutionContext, **what: Any) -> Message:
        answer = await self.ask({"want": want, **what}, context)
        if "error" in answer:
            raise SandboxError(answer["error"], answer["code"])
        return answer


def _prepare(settings: Settings) -> None:
    if settings.artifact_dir is not None:
        try:
            PartFiles(settings.artifact_dir).prepare()
        except OSError as error:
            what = f"FORGE_ARTIFACT_DIR: {settings.artifact_dir} cannot be used on this host: {error.strerror or error}"
            raise ConfigurationError(f"{what}. Name a folder that this user can write to, and no other.") from error


async def _answered(do: Do, stored: StoredArtifacts, request: Message, context: ExecutionContext) -> Message:
    try:
        return await do(stored, request, context)
    except ForgeError as error:
        return {"error": error.message, "code": error.code}
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # whoever wrote it is not one of us
        return {"error": f"Malformed request: {error!r}", "code": ErrorCode.VALIDATION_ERROR}


async def _add_all(stored: StoredArtifacts, new: Artifact, sent: Sent) -> bool:
    """False if somebody else was quicker, or it was given up."""
    for number in range(count_parts(new.size)):
        if not await stored.add(new.id, number, *await sent.part(number)):
            return False
    return True


def _packed(gathered: Gathered, number: int, media_type: str) -> tuple[bytes, int]:
    chunk = gathered.read(number * PART_BYTES, PART_BYTES)
    return pack(chunk, media_type), chunk.count(b"\n")


def _unpack_into(gathered: Gathered, data: bytes, number: int, size: int) -> None:
    gathered.add(unpack(data, number, size))


def to_text(message: Message) -> Message:
    """Make a message one that JSON can carry."""
    return message | {"data": base64.b64encode(message["data"]).decode()} if "data" in message else message


def from_text(message: Message) -> Message:
    """Undo `to_text`."""
    return message | {"data": base64.b64decode(message["data"])} if "data" in message else message


def _facts(artifact: Artifact | None) -> Message:
    if artifact is None or artifact.created_at is None or artifact.expires_at is None:
        return {}
    created, expires = artifact.created_at.isoformat(), artifact.expires_at.isoformat()
    return {"size": artifact.size, "created_at": created, "expires_at": expires}
