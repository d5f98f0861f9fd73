"""The documents that a call may see: those of its session, its agent or its workspace."""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from forge_tools.errors import ErrorCode, SandboxError, ToolFailure
from forge_tools.model import ExecutionContext
from forge_tools.model.documents import Document, DocumentScope, DocumentScopeKind, DocumentWriter, Revise
from forge_tools.sandbox.reach import REACH

_FOR_NOW = "\n[kept only in the memory of this process: there is no database here]"


class Documents:
    """Access to documents for one call; `options` are the call's parameters."""

    def __init__(
        self, context: ExecutionContext, kind: DocumentScopeKind, tool: str, options: Mapping[str, Any]
    ) -> None:
        reached = REACH.get().documents
        if reached is None:
            what = f"{tool} keeps its data in the database, which children of the process lane cannot reach. "
            raise SandboxError(f"{what}Run it in the async lane", ErrorCode.SERVICE_UNAVAILABLE)
        owners = {"session": context.session_id, "agent": context.agent_id, "workspace": context.workspace}
        self._reached = reached
        self._scope = DocumentScope(kind, owners[kind])
        self._writer = _writer(context, tool, options)

    @property
    def note(self) -> str:
        """A note for the result of a write if documents are not durable here; else empty."""
        return "" if self._reached.is_durable else _FOR_NOW

    async def read(self, path: str) -> Document | None:
        return await self._reached.read(self._scope, path)

    async def find(self, under: str, words: Sequence[str] | None = None, *, limit: int) -> list[Document]:
        return await self._reached.find(self._scope, under, words, limit)

    async def change(self, paths: Sequence[str], revise: Revise, *, dry_run: bool = False) -> dict[str, Document]:
        """Change documents as `revise` decides; a dry run calls it too, but changes nothing."""
        if not dry_run:
            return await self._reached.change(self._scope, paths, revise, self._writer)
        seen: dict[str, Document] = {}

        def decide(before: Mapping[str, Document]) -> Mapping[str, str | None]:
            seen.update(before)
            revise(before)
            return {}

        return await self._reached.change(self._scope, paths, decide, DocumentWriter())


def require_version(path: str, document: Document | None, expected: int | None, **details: Any) -> None:
    """Refuse to write if somebody else has written since; a missing document has version 0."""
    version = document.version if document else 0
    if expected not in (None, version):
        text = f"{path} is at version {version}, not {expected}. Read it, then write again."
        raise ToolFailure(text, code="VERSION_CONFLICT", details={"version": version, **details})


def _writer(context: ExecutionContext, tool: str, options: Mapping[str, Any]) -> DocumentWriter:
    if context.execution_id is None:
        return DocumentWriter(context.agent_id)
    # The parameters count too: the same id with another call is another write.
    said = json.dumps([context.execution_id, tool, options], sort_keys=True)
    call = blake2b(said.encode(), digest_size=16).hexdigest()
    return DocumentWriter(context.agent_id, call, is_repeated=context.attempt > 1)
