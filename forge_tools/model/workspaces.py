"""Workspaces by name, as their hosts announce them: on every host of many, or bound to one."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWorkspace:
    """What one worker has under a name. `roots` are its folders as people may see them."""

    name: str
    is_shared: bool
    roots: tuple[str, ...]

    def clashes_with(self, other: "NamedWorkspace") -> bool:
        """Whether two hosts cannot have both: the names are the same, and they are not shared."""
        return self.name == other.name and not (self.is_shared and other.is_shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRecord(NamedWorkspace):
    """A workspace as one instance announced it. It is not `is_live` once that instance has stopped, or is silent for too long."""

    instance: str
    hostname: str
    is_live: bool
    has_stopped: bool
    silent_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspacePlaces:
    """Where the known workspaces are: the host of each one that is bound, None for those that are shared.

    `has_sessions` tells whether any session has a workspace of its own.
    """

    hosts: Mapping[str, str | None] = field(default_factory=dict)
    has_sessions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A claimed call that was not run here: its row now waits in `queue`, as if it had never been claimed."""

    queue: str
    hostname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """A claimed call that can go nowhere, and why, as a sentence. It is still this worker's."""

    why: str
