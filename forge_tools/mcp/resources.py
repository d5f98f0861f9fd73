"""Artifacts as resources: what was too long for a result, read whole by the session whose call it was."""

import base64
from collections.abc import AsyncIterator
from typing import Protocol

from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    BlobResourceContents,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceTemplate,
    TextResourceContents,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from forge_tools.mcp.calling import Context
from forge_tools.mcp.identity import caller_of
from forge_tools.mcp.offer import Offer
from forge_tools.records import Artifact, artifact_id
from forge_tools.records.artifacts import SCHEME
from forge_tools.validation import shown

LARGEST = 10_000_000
"""Bytes of what is read in one message; larger ones are for tools that read a part of them."""

RESOURCE_NOT_FOUND = -32002
"""What the protocol has for it until 2025-11-25."""

_ARTIFACTS = ResourceTemplate(
    uri_template=f"{SCHEME}{{id}}",
    name="artifact",
    title="A whole output",
    description="The whole of an output that was too long for its result, which has the link to it.",
    mime_type="text/plain",
)


class ArtifactReader(Protocol):
    """Where artifacts are kept."""

    async def find(self, id: str, session_id: str | None, /) -> Artifact | None: ...

    def read(self, artifact: Artifact, /) -> AsyncIterator[bytes]: ...


class Resources:
    """Serves artifacts. They are not listed: results link to them, and a session sees its own only."""

    def __init__(self, artifacts: ArtifactReader, offer: Offer) -> None:
        self._artifacts = artifacts
        self._offer = offer

    async def list(self, _ctx: Context, _params: PaginatedRequestParams) -> ListResourcesResult:
        return ListResourcesResult(resources=[])

    async def templates(self, _ctx: Context, _params: PaginatedRequestParams) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=[_ARTIFACTS])

    async def read(self, ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        id_ = artifact_id(params.uri)
        artifact = await self._artifacts.find(id_, caller_of(ctx, self._offer).session_id) if id_ else None
        if artifact is None:
            code = INVALID_PARAMS if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else RESOURCE_NOT_FOUND
            raise MCPError(code=code, message=f"Resource not found, or expired: {shown(params.uri)}")
        if artifact.size > LARGEST:
            way_out = f"Read parts of it with the tool Read, file_path {artifact.handle}, offset and limit"
            message = f"{artifact.handle} is {artifact.size:,} bytes; resources are read up to {LARGEST:,}. {way_out}."
            raise MCPError(code=INVALID_PARAMS, message=message)
        data = b"".join([chunk async for chunk in self._artifacts.read(artifact)])
        return ReadResourceResult(contents=[_contents(params.uri, data)])


def _contents(uri: str, data: bytes) -> TextResourceContents | BlobResourceContents:
    try:
        return TextResourceContents(uri=uri, mime_type="text/plain", text=data.decode())
    except UnicodeDecodeError:
        blob = base64.b64encode(data).decode()
        return BlobResourceContents(uri=uri, mime_type="application/octet-stream", blob=blob)
