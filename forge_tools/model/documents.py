"""Documents: small versioned texts that tools keep for a session, an agent or a workspace."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from forge_tools.errors import ToolFailure

MAX_DOCUMENTS = 1_000
"""How many documents one scope can hold."""

MAX_CHANGED = 100
"""How many documents one call may change, for example all of a folder."""

KEPT_VERSIONS = 20
"""How many versions of a document are kept, including the newest."""

DocumentScopeKind = Literal["session", "agent", "workspace"]


class DocumentScope(NamedTuple):
    """The documents of one session, agent or workspace; `owner` None means all calls that name none."""

    kind: DocumentScopeKind
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One version. `author` is the agent that wrote it; `content` is empty if only a list of documents was requested."""

    path: str
    version: int
    content: str
    author: str | None
    updated_at: datetime


class DocumentWriter(NamedTuple):
    """Who writes. `call` identifies one call and its parameters; `is_repeated`: an earlier start may have written."""

    author: str | None = None
    call: str | None = None
    is_repeated: bool = False


Revise = Callable[[Mapping[str, Document]], Mapping[str, str | None]]
"""Computes the new contents of documents, by path, from the current ones; None deletes. If it raises, nothing changes.

It runs inside the writing transaction, on a shared event loop: it must be fast and have no side effects.
"""


def too_many(scope: DocumentScope) -> ToolFailure:
    """Build the failure for one document too many."""
    held = f"This {scope.kind} has {MAX_DOCUMENTS:,} documents, the limit"
    return ToolFailure(f"{held}. Delete some first.", code="QUOTA_EXCEEDED", details={"limit": MAX_DOCUMENTS})


def too_many_changed(path: str) -> ToolFailure:
    """Build the failure for changing all of a large folder in one call."""
    text = f"There are more than {MAX_CHANGED} documents in {path.rstrip('/')}, the limit for one call. Change one of its folders at a time."
    return ToolFailure(text, code="QUOTA_EXCEEDED", details={"limit": MAX_CHANGED})


def is_below(path: str, folder: str) -> bool:
    """Whether a path is the folder itself or lies inside it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def is_at(path: str, asked: str) -> bool:
    """Whether a path is the one asked for, or lies inside it if that ends in a slash."""
    return path == asked.rstrip("/") or (asked.endswith("/") and is_below(path, asked))
