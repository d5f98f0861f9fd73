"""What the calls of an executor may reach on the host that runs them: folders, shells, artifacts."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from forge_tools.config import RootSettings, Settings, WorkspaceSettings
from forge_tools.errors import ConfigurationError
from forge_tools.records import Artifact, ExecutionContext, NamedWorkspace, ShellRecord
from forge_tools.sandbox.paths.confinement import OPEN_FOLDER, Root
from forge_tools.sandbox.paths.refusals import SECRETS, Protection


class Artifacts(Protocol):
    """Where outputs are kept whole, for every host to read."""

    max_bytes: int
    """The limit for one artifact."""

    async def put(self, chunks: AsyncIterator[bytes], context: ExecutionContext) -> Artifact:
        """Keep the bytes; the same bytes again give the same artifact.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What is not given is not there: no artifacts, no shells, no workspaces by name.

    `root` is the workspace of calls that name none, one folder or several roots; without it the context's `working_dir`
    is all of theirs. `shells` is the folder in which this host's supervisors keep their state. Hostname is this host's.
    """

    root: Path | Sequence[Root] | None = None
    workspaces: Mapping[str, Sequence[Root]] = field(default_factory=dict)
    hostname: str = ""
    shells: Path | None = None
    book: ShellBook | None = None
    artifacts: Artifacts | None = None


REACH: ContextVar[Reach] = ContextVar("forge_tools_reach", default=Reach())  # noqa: B039  a frozen value
"""Of the call being run."""


def reach_of(settings: Settings, *, book: ShellBook | None = None, artifacts: Artifacts | None = None) -> Reach:
    """What the tools of this host may touch.

    Raises:
        ConfigurationError: a folder of a workspace is not there.
    """
    return Reach(
        root=root_of(settings),
        workspaces=workspaces_of(settings),
        hostname=settings.hostname,
        shells=settings.shells_folder,
        book=book,
        artifacts=artifacts,
    )


def root_of(settings: Settings) -> Path | Sequence[Root]:
    """The workspace of calls that name none: one folder, or several roots of which it is the first.

    Raises:
        ConfigurationError: another root is not there; naming the setting and the folder.
    """
    if not settings.workspace_roots:
        return settings.workspace
    others = [_root(one, "FORGE_WORKSPACE_ROOTS: ") for one in settings.workspace_roots]
    return (Root(settings.workspace.absolute()), *others)


def workspaces_of(settings: Settings) -> dict[str, Sequence[Root]]:
    """The workspaces by name.

    Raises:
        ConfigurationError: a root is not there; naming the setting, the workspace and the folder.
    """
    return {name: _roots(name, one) for name, one in settings.workspaces.items()}


def announced(settings: Settings) -> list[NamedWorkspace]:
    """The workspaces by name, as other hosts and people may see them."""
    return [
        NamedWorkspace(name=name, is_shared=one.shared, roots=tuple(map(_shown, one.roots)))
        for name, one in settings.workspaces.items()
    ]


def _roots(name: str, workspace: WorkspaceSettings) -> tuple[Root, ...]:
    protection = Protection(secrets=(*SECRETS, *workspace.protected))
    return tuple(_root(one, f"FORGE_WORKSPACES: workspace {name}: ", protection) for one in workspace.roots)


def _root(one: RootSettings, where: str, protection: Protection | None = None) -> Root:
    path = one.path.absolute()
    try:
        os.close(os.open(path, OPEN_FOLDER))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        what = f"{where}{path} cannot be opened on this host: {reason}. Make it a folder that this user can read"
        raise ConfigurationError(f"{what}, or take it out of the setting.") from error
    return Root(path, is_read_only=one.read_only, protection=protection or Protection())


def _shown(one: RootSettings) -> str:
    return f"{one.path.absolute()}{' (read-only)' if one.read_only else ''}"
