"""What tools, on their own loops, ask the engine, which has the database: artifacts, rows of shells, documents."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from forge_tools.artifacts.parts import PART_BYTES, count_parts, unpack
from forge_tools.errors import (
    DatabaseUnavailableError,
    ErrorCode,
    SandboxError,
    StorageError,
)
from forge_tools.model import (
    Artifact,
    Document,
    DocumentScope,
    DocumentWriter,
    ExecutionContext,
    Revise,
    ShellRecord,
    artifact_id,
)
from forge_tools.model.artifacts import TEXT
from forge_tools.sandbox.artifacts import damaged, unknown
from forge_tools.sandbox.spools import Gathered, Recent
from forge_tools.storage import Store
from forge_tools.storage.artifacts import MOST_TRIES
from workers.artifacts import ArtifactDesk, Message, packed

T = TypeVar("T")

Ask = Callable[[Message, ExecutionContext], Awaitable[Message]]
"""Sends a request of a call to the engine, wherever that is, and returns its answer."""

logger = logging.getLogger(__name__)


class RemoteStore:
    """Created before the engine, which later provides its Store: tools are made before that, and may outlive it."""

    def __init__(self) -> None:
        self._there: tuple[asyncio.AbstractEventLoop, Store] | None = None

    def open(self, store: Store) -> None:
        """Provide the store, which belongs to the running loop."""
        self._there = asyncio.get_running_loop(), store

    async def ask(self, question: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Make the engine's loop answer, from any loop.

        Raises:
            DatabaseUnavailableError: the Store has not been opened yet, or its loop has ended.
        """
        if self._there is None:
            raise DatabaseUnavailableError("This worker has not opened its database yet. Try again.")
        loop, store = self._there
        work = question(store)
        try:
            answering = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError as error:  # the loop has ended
            work.close()
            raise DatabaseUnavailableError("This worker is stopping and has closed its database. Try again.") from error
        return await asyncio.wrap_future(answering)


class RemoteShells:
    """The rows of shells, for tools."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    async def record(self, shell: ShellRecord) -> None:
        """Record what this host has seen of its own shell. Without a database, the watch does so once it is back."""
        try:
            await self._store.ask(lambda store: store.shells.record(shell))
        except StorageError as error:
            logger.warning("A shell is not in SQL yet", extra={"shell": shell.id, "error": error.message})

    async def find(self, id: str) -> ShellRecord | None:
        """Read one shell; None if nobody has reported it."""
        return await self._store.ask(lambda store: store.shells.find(id))

    async def of_session(self, session_id: str | None) -> list[ShellRecord]:
        """List the shells of a session on all hosts, the oldest first."""
        return await self._store.ask(lambda store: store.shells.of_session(session_id))


class RemoteDocuments:
    """The documents of sessions, agents and workspaces, for tools."""

    is_durable = True

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    async def find(self, scope: DocumentScope, under: str, words: Sequence[str] | None, limit: int) -> list[Document]:
        """List the document at `under` and those below it."""
        return await self._store.ask(lambda store: store.documents.find(scope, under, words, limit))

    async def read(self, scope: DocumentScope, path: str) -> Document | None:
        """Read one; None if there is none."""
        return await self._store.ask(lambda store: store.documents.read(scope, path))

    async def change(
        self, scope: DocumentScope, paths: Sequence[str], revise: Revise, writer: DocumentWriter
    ) -> dict[str, Document]:
        """Change them; `revise` runs on the engine's loop."""
        return await self._store.ask(lambda store: store.documents.change(scope, paths, revise, writer))


def ask_engine(desk: ArtifactDesk, store: RemoteStore) -> Ask:
    """Make the engine of this process answer requests of its own tools, whose code is trusted."""

    async def ask(request: Message, context: ExecutionContext) -> Message:
        return await store.ask(lambda opened: desk.answer(opened.artifacts, request, context))

    return ask


class WorkerArtifacts:
    """The side of tools in the engine's process: bytes are hashed here, and the engine asks for one part after the other."""

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
        """Keep the bytes; equal bytes are kept once, and for longer."""
        gathered = await Gathered.of(chunks, limit or self.max_bytes)
        try:
            what = {"id": gathered.id, "size": gathered.size, "media_type": media_type}
            facts = await self._keep(what, context, gathered)
        finally:
            gathered.close()
        if not facts:
            said = "The output could not be kept: it was deleted meanwhile. Try again"
            raise SandboxError(said, ErrorCode.TOOL_ERROR)
        return Artifact(
            id=gathered.id,
            size=gathered.size,
            media_type=media_type,
            session_id=context.session_id,
            created_at=datetime.fromisoformat(facts["created_at"]),
            expires_at=datetime.fromisoformat(facts["expires_at"]),
        )

    async def open(self, handle: str, context: ExecutionContext) -> int:
        """Return a descriptor of an unnamed file with its bytes, which are fetched once for several calls."""
        found = artifact_id(handle)
        if found is None:
            raise unknown(handle)
        facts = await self._asked("find", context, id=found, size=0)
        if not facts:
            raise unknown(handle)
        if (fd := self._recent.open(found)) is not None:
            return fd
        try:
            fetched = await self._fetch(handle, found, facts, context)
            fd = fetched.take(datetime.fromisoformat(facts["created_at"]).timestamp())
            self._recent.add(found, fd)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise SandboxError(f"{handle} cannot be copied to this host: {reason}", ErrorCode.TOOL_ERROR) from error
        return fd

    async def _keep(self, what: Message, context: ExecutionContext, gathered: Gathered) -> Message:
        return await self._asked("keep", context, **what, part=partial(packed, gathered, what["media_type"]))

    async def _fetch(self, handle: str, found: str, facts: Message, context: ExecutionContext) -> Gathered:
        gathered, size = Gathered(), facts["size"]

        def add(data: bytes, number: int) -> None:
            gathered.add(unpack(data, number, size))

        try:
            for number in range(count_parts(size)):
                answer = await self._asked("part", context, id=found, size=size, number=number)
                if not answer:
                    raise unknown(handle)
                await asyncio.to_thread(add, answer["data"], number)
            if gathered.id != Artifact(id=found, size=size).digest:
                raise ValueError("bytes that do not match the digest")
        except ValueError:
            await self._asked("check", context, id=found, size=0)
            raise damaged(handle) from None
        return gathered

    async def _asked(self, want: str, context: ExecutionContext, **what: Any) -> Message:
        answer = await self.ask({"want": want, **what}, context)
        if "error" in answer:
            raise SandboxError(answer["error"], answer["code"])
        return answer


class ChildArtifacts(WorkerArtifacts):
    """The side of tools in a child, which sends the engine one part at a time."""

    async def _keep(self, what: Message, context: ExecutionContext, gathered: Gathered) -> Message:
        for _ in range(MOST_TRIES):
            if facts := await self._asked("begin", context, **what):
                return facts
            if await self._send(what, context, gathered) and (facts := await self._asked("finish", context, **what)):
                return facts
        return {}

    async def _send(self, what: Message, context: ExecutionContext, gathered: Gathered) -> bool:
        """Return False if the engine has given it up: a call that sends many at once loses some."""
        for number in range(count_parts(what["size"])):
            data = await asyncio.to_thread(gathered.read, number * PART_BYTES, PART_BYTES)
            added = await self._asked("add", context, **what, number=number, data=data)
            if not added["is_waiting"]:
                return False
        return True
