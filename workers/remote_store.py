"""What tools, on their own loops, ask the engine, which has the database: artifacts, rows of shells, documents."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar

from forge_tools.artifacts.parts import unpack
from forge_tools.artifacts.reader import whole
from forge_tools.errors import DatabaseUnavailableError, ErrorCode, SandboxError, StorageError
from forge_tools.model.artifacts import TEXT, Artifact, artifact_id
from forge_tools.model.calls import ExecutionContext
from forge_tools.model.documents import Document, DocumentScope, DocumentWriter, Revise
from forge_tools.model.places import ShellRecord
from forge_tools.sandbox.artifacts import damaged, unknown
from forge_tools.sandbox.spools import Gathered, Recent, fill
from forge_tools.storage import Store
from workers.artifacts import ArtifactDesk, Message

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
    """Make the engine of this process answer requests of its own tools."""

    async def ask(request: Message, context: ExecutionContext) -> Message:
        return await store.ask(lambda opened: desk.answer(opened.artifacts, request, context))

    return ask


class WorkerArtifacts:
    """The side of tools, in the engine's process or in a child: it hands the engine a file with the bytes."""

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
        file = await fill(Gathered(), chunks, limit or self.max_bytes)  # closed with the last reference: the engine's
        facts = await self._asked("keep", context, media_type=media_type, file=file)
        if not facts:
            said = "The output could not be kept: it was deleted meanwhile. Try again"
            raise SandboxError(said, ErrorCode.TOOL_ERROR)
        return Artifact(
            id=facts["id"],
            size=facts["size"],
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

    async def _fetch(self, handle: str, found: str, facts: Message, context: ExecutionContext) -> Gathered:
        async def chunk(number: int) -> bytes:
            answer = await self._asked("part", context, id=found, size=it.size, number=number)
            if not answer:
                raise unknown(handle)
            return await asyncio.to_thread(unpack, answer["data"], number, it.size)

        it = Artifact(id=found, size=facts["size"])
        try:
            return await fill(Gathered(), whole(it, chunk), it.size)
        except ValueError:
            await self._asked("check", context, id=found, size=0)
            raise damaged(handle) from None

    async def _asked(self, want: str, context: ExecutionContext, **what: Any) -> Message:
        answer = await self.ask({"want": want, **what}, context)
        if "error" in answer:
            raise SandboxError(answer["error"], answer["code"])
        return answer
