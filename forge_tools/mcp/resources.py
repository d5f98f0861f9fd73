"""Artifacts as resources: what was too long for a result, read whole or in pages by the session whose call it was."""

import base64
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode

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

from forge_tools.errors import InvalidCallError
from forge_tools.mcp.calling import Context
from forge_tools.mcp.identity import caller_of
from forge_tools.mcp.offer import Offer
from forge_tools.mcp.rendering import META
from forge_tools.records import Artifact, ArtifactPage, PageWish, artifact_id
from forge_tools.records.artifacts import PAGE_LINES, SCHEME
from forge_tools.validation import shown

LARGEST = 10_000_000
"""Bytes of what is read in one message; of larger ones a page."""

PAGE_BYTES = 100_000
"""Bytes of a page whose reader says nothing else; it is most likely to end in front of a model."""

RESOURCE_NOT_FOUND = -32002
"""What the protocol has for it until 2025-11-25."""

_TEMPLATES = [
    ResourceTemplate(
        uri_template=f"{SCHEME}{{id}}",
        name="artifact",
        title="A whole output",
        description="The whole of an output that was too long for its result, which has the link to it.",
        mime_type="text/plain",
    ),
    ResourceTemplate(
        uri_template=f"{SCHEME}{{id}}{{?offset,byte,limit,max_bytes}}",
        name="artifact-page",
        title="A page of an output",
        description=f"Lines of such an output: from line `offset` (or from a byte), at most `limit` lines (by default "
        f"{PAGE_LINES:,}) and `max_bytes` bytes ({PAGE_BYTES:,}). `_meta` of what is read has the address of the next page.",
        mime_type="text/plain",
    ),
]

_WISHES = tuple(field.name for field in fields(PageWish))


class ArtifactReader(Protocol):
    """Where artifacts are kept."""

    async def find(self, id: str, session_id: str | None, /) -> Artifact | None: ...

    def read(self, artifact: Artifact, /) -> AsyncIterator[bytes]: ...

    async def page(self, artifact: Artifact, wish: PageWish, /) -> ArtifactPage: ...


class Resources:
    """Serves artifacts. They are not listed: results link to them, and a session sees its own only."""

    def __init__(self, artifacts: ArtifactReader, offer: Offer) -> None:
        self._artifacts = artifacts
        self._offer = offer

    async def list(self, _ctx: Context, _params: PaginatedRequestParams) -> ListResourcesResult:
        return ListResourcesResult(resources=[])

    async def templates(self, _ctx: Context, _params: PaginatedRequestParams) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=_TEMPLATES)

    async def read(self, ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        address, is_paged, query = params.uri.partition("?")
        id_ = artifact_id(address)
        artifact = await self._artifacts.find(id_, caller_of(ctx, self._offer).session_id) if id_ else None
        if artifact is None:
            code = INVALID_PARAMS if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else RESOURCE_NOT_FOUND
            raise MCPError(code=code, message=f"Resource not found, or expired: {shown(params.uri)}")
        if is_paged:
            return await self._page(params.uri, artifact, _wish(query))
        if artifact.size > LARGEST:
            message = (
                f"{artifact.handle} is {artifact.size:,} bytes; resources are read up to {LARGEST:,}. "
                f"Read it in pages, {artifact.handle}?offset=1 first, or with the tool Read, file_path {artifact.handle}."
            )
            raise MCPError(code=INVALID_PARAMS, message=message)
        data = b"".join([chunk async for chunk in self._artifacts.read(artifact)])
        return ReadResourceResult(contents=[_contents(params.uri, data)])

    async def _page(self, uri: str, artifact: Artifact, wish: PageWish) -> ReadResourceResult:
        try:
            page = await self._artifacts.page(artifact, wish)
        except InvalidCallError as error:
            raise MCPError(code=INVALID_PARAMS, message=error.message) from error
        meta: dict[str, Any] = {f"{META}/start": page.start, f"{META}/end": page.end, f"{META}/size": page.size}
        if page.next:
            limits = {"limit": wish.limit, "max_bytes": wish.max_bytes if wish.max_bytes != PAGE_BYTES else None}
            following = page.next | {name: value for name, value in limits.items() if value is not None}
            meta[f"{META}/next"] = f"{artifact.handle}?{urlencode(following)}"
        return ReadResourceResult(contents=[_contents(uri, page.data, meta)])


def _wish(query: str) -> PageWish:
    """Read the part of the address that says which page."""
    try:
        given = {
            name: int(value) for name, value in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        }
        wish = PageWish(**{"max_bytes": PAGE_BYTES} | given)
    except (TypeError, ValueError) as error:
        message = f"{shown(query)} says no page. Give whole numbers for any of {', '.join(_WISHES)}."
        raise MCPError(code=INVALID_PARAMS, message=message) from error
    if wish.most_bytes > LARGEST:
        raise MCPError(code=INVALID_PARAMS, message=f"max_bytes {wish.most_bytes:,} is more than {LARGEST:,}.")
    return wish


def _contents(uri: str, data: bytes, meta: dict[str, Any] | None = None) -> TextResourceContents | BlobResourceContents:
    try:
        return TextResourceContents(uri=uri, mime_type="text/plain", text=data.decode(), _meta=meta)
    except UnicodeDecodeError:
        blob = base64.b64encode(data).decode()
        return BlobResourceContents(uri=uri, mime_type="application/octet-stream", blob=blob, _meta=meta)
