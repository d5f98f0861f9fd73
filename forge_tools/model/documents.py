"""Documents: small texts that tools keep for a session, an agent or a workspace, each in versions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from forge_tools.errors import ToolFailure

MAX_DOCUMENTS = 1_000
"""How many one scope holds."""

MAX_CHANGED = 100
"""How many one call may change, such as all of a folder."""

KEPT_VERSIONS = 20
"""How many versions of a document are kept, the newest included."""

DocumentScopeKind = Literal["session", "agent", "workspace"]


class DocumentScope(NamedTuple):
    """The documents of one session, agent or workspace; with `owner` None, of all calls that name none."""

    kind: DocumentScopeKind
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One version. `author` is the agent that wrote it; `content` is empty where only a list of documents was asked for."""

    path: str
    version: int
    content: str
    author: str | None
    updated_at: datetime


class DocumentWriter(NamedTuple):
    """Who writes. `call` stands for one call and its parameters; where `is_repeated`, an earlier start of it may have written already."""

    author: str | None = None
    call: str | None = None
    is_repeated: bool = False


Revise = Callable[[Mapping[str, Document]], Mapping[str, str | None]]
"""Decides the new contents of documents, by path, from what there is; None deletes. What it raises leaves all as it was.

It runs inside the transaction that writes, on a loop that others share: it must be quick, and have no effect of its own.
"""


def too_many(scope: DocumentScope) -> ToolFailure:
    """The refusal of one document more."""
    held = f"This {scope.kind} has {MAX_DOCUMENTS:,} documents, the limit"
    return ToolFailure(f"{held}. Delete some first.", code="QUOTA_EXCEEDED", details={"limit": MAX_DOCUMENTS})


def too_many_changed(path: str) -> ToolFailure:
    """The refusal to change all of a large folder at once."""
    text = f"There are more than {MAX_CHANGED} documents in {path}, and one call changes no more. Go by its folders."
    return ToolFailure(text, code="QUOTA_EXCEEDED", details={"limit": MAX_CHANGED})


def is_below(path: str, folder: str) -> bool:
    """Whether a path is the folder itself, or lies in it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
