"""The engine's Store for tools, whose loops are others."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from forge_tools.errors import DatabaseUnavailableError, StorageError
from forge_tools.model import Document, DocumentScope, DocumentWriter, Revise, ShellRecord
from forge_tools.storage import Store

T = TypeVar("T")

logger = logging.getLogger(__name__)


class RemoteStore:
    """Made before the engine, which says once where its Store is: tools are made before that, and may outlive it."""

    def __init__(self) -> None:
        self._there: tuple[asyncio.AbstractEventLoop, Store] | None = None

    def open(self, store: Store) -> None:
        """It lives on the loop that runs."""
        self._there = asyncio.get_running_loop(), store

    async def ask(self, question: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Have the engine's loop answer, from any loop.

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
            raise DatabaseUnavailableError("This worker stops and has closed its database. Try again.") from error
        return await asyncio.wrap_future(answering)


class RemoteShells:
    """The rows of shells, for tools."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    async def record(self, shell: ShellRecord) -> None:
        """Note what this host has seen of a shell of its own. Without a database the watch will, once it is back."""
        try:
            await self._store.ask(lambda store: store.shells.record(shell))
        except StorageError as error:
            logger.warning("A shell is not in SQL yet", extra={"shell": shell.id, "error": error.message})

    async def find(self, id: str) -> ShellRecord | None:
        """Read one shell; None where nobody has told of it."""
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
        """Read one; None where there is none."""
        return await self._store.ask(lambda store: store.documents.read(scope, path))

    async def change(
        self, scope: DocumentScope, paths: Sequence[str], revise: Revise, writer: DocumentWriter
    ) -> dict[str, Document]:
        """Change them; `revise` runs on the engine's loop."""
        return await self._store.ask(lambda store: store.documents.change(scope, paths, revise, writer))
