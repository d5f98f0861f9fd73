"""What the calls of an executor may reach on the host that runs them: folders, shells, artifacts, documents."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from forge_tools.model import (
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
from forge_tools.sandbox.web.access import Web


class Artifacts(Protocol):
    """Where outputs are kept whole, for every host to read."""

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
        """Keep the bytes, at most `limit` in place of `max_bytes`; the same bytes again give the same artifact.

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
    """What is known of shells on every host; a host's own supervisors know more of its own."""

    async def record(self, shell: ShellRecord) -> None:
        """Note what this host has seen of a shell of its own."""
        ...

    async def find(self, id: str) -> ShellRecord | None: ...

    async def of_session(self, session_id: str | None) -> list[ShellRecord]:
        """List the shells of a session on all hosts, the oldest first."""
        ...


class Documents(Protocol):
    """Small texts in versions, for every host to read and write."""

    is_durable: bool
    """Whether they outlive this process."""

    async def find(self, scope: DocumentScope, under: str, words: Sequence[str] | None, limit: int) -> list[Document]:
        """List the document at `under` and those below it, by path: with `words` those that have each of them."""
        ...

    async def read(self, scope: DocumentScope, path: str) -> Document | None: ...

    async def change(
        self, scope: DocumentScope, paths: Sequence[str], revise: Revise, writer: DocumentWriter
    ) -> dict[str, Document]:
        """Have `revise` decide what becomes of the documents at these paths and below, while nobody else writes.

        Raises:
            ToolFailure: there would be too many of them, or `revise` refuses.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What is not given is not there: no artifacts, no shells, no workspaces by name. Documents are then in this process alone.

    `root` is the workspace of calls that name none, one folder or several roots; without it the context's `working_dir`
    is all of theirs. `max_part_bytes` is what one part of a result may have. `shells` is the folder in which this host's supervisors keep their state. Hostname is this host's.
    """

    root: Path | Sequence[Root] | None = None
    workspaces: Mapping[str, Sequence[Root]] = field(default_factory=dict)
    hostname: str = ""
    shells: Path | None = None
    book: ShellBook | None = None
    artifacts: Artifacts | None = None
    web: Web = field(default_factory=Web)
    cache: Path | None = None
    """Where what can be worked out again is kept, for all calls on this host."""
    documents: Documents | None = field(default_factory=ProcessDocuments)
    """None where they are not within reach, as in the process lane."""
    max_part_bytes: int = 100 << 20


REACH: ContextVar[Reach] = ContextVar("forge_tools_reach", default=Reach())  # noqa: B039  a frozen value
"""Of the call being run."""
