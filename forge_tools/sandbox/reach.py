"""What the calls of an executor may reach on the host that runs them: folders, shells, artifacts, documents."""

import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from forge_tools.model.artifacts import TEXT, Artifact
from forge_tools.model.calls import ExecutionContext
from forge_tools.model.documents import (
    MAX_CHANGED,
    MAX_DOCUMENTS,
    Document,
    DocumentScope,
    DocumentWriter,
    Revise,
    is_at,
    is_below,
    too_many,
    too_many_changed,
)
from forge_tools.model.places import ShellRecord
from forge_tools.model.scope import SCOPE
from forge_tools.sandbox.paths.confinement import Root
from forge_tools.sandbox.processes.spawner import CommandWalls
from forge_tools.sandbox.web.access import Web


class Artifacts(Protocol):
    """Where outputs are stored whole, for every host to read."""

    max_bytes: int
    """The limit for one artifact."""

    async def put(
        self,
        chunks: AsyncIterator[bytes],
        context: ExecutionContext,
        *,
        limit: int | None = None,
        media_type: str = TEXT,
    ) -> Artifact:
        """Store the bytes, at most `limit` instead of `max_bytes`; the same bytes again give the same artifact."""

    async def open(self, handle: str, context: ExecutionContext) -> int:
        """Return a descriptor, for the caller to close, of a regular file with all of its bytes."""


class ShellBook(Protocol):
    """The records of shells on every host; a host's own supervisors know more about its own."""

    async def record(self, shell: ShellRecord) -> None:
        """Record the state of one of this host's shells."""

    async def find(self, id: str) -> ShellRecord | None: ...

    async def of_session(self, session_id: str | None) -> list[ShellRecord]:
        """List the shells of a session on all hosts, the oldest first."""


class Documents(Protocol):
    """Small versioned texts, for every host to read and write."""

    is_durable: bool
    """Whether they outlive this process."""

    async def find(self, scope: DocumentScope, under: str, words: Sequence[str] | None, limit: int) -> list[Document]:
        """List the document at `under` and those below it that were written last, by path; with `words`, only those that contain each of them."""

    async def read(self, scope: DocumentScope, path: str) -> Document | None: ...

    async def change(
        self, scope: DocumentScope, paths: Sequence[str], revise: Revise, writer: DocumentWriter
    ) -> dict[str, Document]:
        """Let `revise` decide the new contents of the documents at these paths, excluding other writers.

        A path that ends in a slash stands for the document there and all below it; too many are a ToolFailure.
        """


class ProcessDocuments:
    """Documents in the memory of this process, which end with it. No version number is reused, even after a deletion."""

    is_durable = False

    def __init__(self) -> None:
        self._lock = threading.Lock()  # not asyncio's: calls on the loops of several threads share them
        self._kept: defaultdict[DocumentScope, dict[str, Document]] = defaultdict(dict)
        self._versions: defaultdict[tuple[DocumentScope, str], int] = defaultdict(int)

    async def find(self, scope: DocumentScope, under: str, words: Sequence[str] | None, limit: int) -> list[Document]:
        wanted = [word.lower() for word in words or ()]
        with self._lock:
            below = [one for one in self._kept[scope].values() if is_below(one.path, under)]
        found = [one for one in below if all(word in f"{one.path}\n{one.content}".lower() for word in wanted)]
        latest = sorted(found, key=lambda one: one.updated_at, reverse=True)[:limit]
        return sorted(latest, key=lambda one: one.path)

    async def read(self, scope: DocumentScope, path: str) -> Document | None:
        return self._kept[scope].get(path)

    async def change(
        self, scope: DocumentScope, paths: Sequence[str], revise: Revise, writer: DocumentWriter
    ) -> dict[str, Document]:
        with self._lock:
            kept = self._kept[scope]
            contents = revise(self._at(scope, paths))
            if len((kept.keys() | contents) - {path for path, new in contents.items() if new is None}) > MAX_DOCUMENTS:
                raise too_many(scope)
            for path, content in contents.items():
                self._versions[scope, path] += 1
                kept.pop(path, None)
                if content is not None:
                    version, now = self._versions[scope, path], datetime.now(UTC)
                    kept[path] = Document(
                        path=path, version=version, content=content, author=writer.author, updated_at=now
                    )
            return self._at(scope, paths)

    def _at(self, scope: DocumentScope, paths: Sequence[str]) -> dict[str, Document]:
        kept = self._kept[scope]
        found = {path: one for path, one in kept.items() if any(is_at(path, asked) for asked in paths)}
        if len(found) > MAX_CHANGED:
            raise too_many_changed(paths[0])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Anything not given is absent: no artifacts, shells or named workspaces. Documents are then local to this process.

    `root` is the workspace of calls that name none, one folder or several roots; by default it is the context's
    `working_dir`. `max_part_bytes` limits one part of a result. `shells` is the folder in which this host's supervisors
    keep their state. `hostname` is this host's.
    """

    root: Path | Sequence[Root] | None = None
    workspaces: Mapping[str, Sequence[Root]] = field(default_factory=dict)
    hostname: str = ""
    shells: Path | None = None
    book: ShellBook | None = None
    artifacts: Artifacts | None = None
    web: Web = field(default_factory=Web)
    cache: Path | None = None
    """Where recomputable results are kept, for all calls on this host."""
    documents: Documents | None = field(default_factory=ProcessDocuments)
    """None if they are out of reach, as in the process lane."""
    max_part_bytes: int = 100 << 20
    commands: CommandWalls = field(default_factory=CommandWalls)
    """What stands around the commands that tools start; by default nothing."""
    commands_in: Mapping[str, CommandWalls] = field(default_factory=dict)
    """The same for calls in these queues."""

    @property
    def commands_of_call(self) -> CommandWalls:
        """What stands around the commands of the running call."""
        scope = SCOPE.get()
        return self.commands if scope is None else self.commands_in.get(scope.queue, self.commands)

    @property
    def unnamed(self) -> Sequence[Root]:
        """The roots of calls that name no workspace, as far as they are given."""
        return (Root(self.root.absolute()),) if isinstance(self.root, Path) else self.root or ()

    def all_roots(self) -> Iterator[Root]:
        for roots in (*self.workspaces.values(), self.unnamed):
            yield from roots


_BARE = Reach()  # one for all: without an executor's own, its documents are those of this process
REACH: ContextVar[Reach] = ContextVar("forge_tools_reach", default=_BARE)
