"""What the calls of an executor may reach on the host that runs them: folders, shells, artifacts, documents."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from forge_tools.model import (
    SCOPE,
    Artifact,
    Document,
    DocumentScope,
    DocumentWriter,
    ExecutionContext,
    Revise,
    ShellRecord,
)
from forge_tools.model.artifacts import TEXT
from forge_tools.sandbox.documents import ProcessDocuments
from forge_tools.sandbox.paths.confinement import Root
from forge_tools.sandbox.processes.walled import CommandWalls
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
        """Store the bytes, at most `limit` instead of `max_bytes`; the same bytes again give the same artifact.

        Raises:
            SandboxError: they are more than the limit, or the session's quota is used up.
        """
        ...

    async def open(self, handle: str, context: ExecutionContext) -> int:
        """Return a descriptor, for the caller to close, of a regular file with all of its bytes.

        Raises:
            SandboxError: there is no such artifact, or it has expired.
        """
        ...


class ShellBook(Protocol):
    """The records of shells on every host; a host's own supervisors know more about its own."""

    async def record(self, shell: ShellRecord) -> None:
        """Record the state of one of this host's shells."""
        ...

    async def find(self, id: str) -> ShellRecord | None: ...

    async def of_session(self, session_id: str | None) -> list[ShellRecord]:
        """List the shells of a session on all hosts, the oldest first."""
        ...


class Documents(Protocol):
    """Small versioned texts, for every host to read and write."""

    is_durable: bool
    """Whether they outlive this process."""

    async def find(self, scope: DocumentScope, under: str, words: Sequence[str] | None, limit: int) -> list[Document]:
        """List the document at `under` and those below it, by path; with `words`, only those with each of them."""
        ...

    async def read(self, scope: DocumentScope, path: str) -> Document | None: ...

    async def change(
        self, scope: DocumentScope, paths: Sequence[str], revise: Revise, writer: DocumentWriter
    ) -> dict[str, Document]:
        """Let `revise` decide the new contents of the documents at these paths, excluding other writers.

        A path that ends in a slash stands for the document there and all below it.

        Raises:
            ToolFailure: there would be too many of them, or `revise` refuses.
        """
        ...


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
        """Those of every workspace."""
        for roots in (*self.workspaces.values(), self.unnamed):
            yield from roots


REACH: ContextVar[Reach] = ContextVar("forge_tools_reach", default=Reach())  # noqa: B039  a frozen value
"""The reach of the running call."""
