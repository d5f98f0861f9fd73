"""What clients receive: lists of tools, results, and artifacts as resources."""

import base64
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode

from mcp import types
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from forge_tools.artifacts.media import OCTETS, media_type
from forge_tools.artifacts.reader import seen
from forge_tools.errors import InvalidCallError
from forge_tools.mcp.calls import Calls, Context, invalid
from forge_tools.model.artifacts import PAGE_LINES, SCHEME, TEXTS, Artifact, ArtifactPage, PageWish, artifact_id
from forge_tools.model.calls import ToolResult
from forge_tools.model.content import CONTENT, Json, Link, Part, Text
from forge_tools.model.tools import ToolSpec
from forge_tools.schema import encode_json, shown
from forge_tools.schema.providers import render

META = "forge-tools"
"""Prefix of our keys under `_meta`."""

_NOTHING: Mapping[str, bytes] = MappingProxyType({})

LARGEST = 10_000_000
"""The largest artifact read in one message, in bytes; of larger ones only a page is read."""

PAGE_BYTES = 100_000
"""The default size of a page in bytes; it will most likely reach a model."""

MOST_COMPLETED = 100
"""The most values that the protocol lets an answer have."""

RESOURCE_NOT_FOUND = -32002
"""The protocol's code for it until 2025-11-25."""

_TEMPLATES = [
    types.ResourceTemplate(
        uri_template=f"{SCHEME}{{id}}",
        name="artifact",
        title="A whole output",
        description="The whole of an output that was too long for its result; the result links to it.",
        mime_type="text/plain",
    ),
    types.ResourceTemplate(
        uri_template=f"{SCHEME}{{id}}{{?offset,byte,limit,max_bytes}}",
        name="artifact-page",
        title="A page of an output",
        description=f"Lines of such an output: from line `offset` (or from a byte), at most `limit` lines (by default "
        f"{PAGE_LINES:,}) and `max_bytes` bytes ({PAGE_BYTES:,}). `_meta` of what is read has the address of the next page.",
        mime_type="text/plain",
    ),
]

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_-]+")
_LONGEST = 2**31  # no limit: outputs have theirs


def listed(spec: ToolSpec, *, as_task: bool) -> types.Tool:
    """Return the tool as `tools/list` shows it; `as_task` means that its calls may become tasks."""
    schema = render(spec, "mcp")
    return types.Tool(
        name=spec.name,
        title=_WORDS.sub(" ", spec.name),
        description=spec.description,
        input_schema=schema["inputSchema"],
        output_schema=schema.get("outputSchema"),
        annotations=types.ToolAnnotations.model_validate(schema["annotations"]),
        execution=types.ToolExecution(task_support="optional") if as_task else None,
    )


async def shown_whole(result: ToolResult, *, is_structured: bool = False) -> types.CallToolResult:
    """Return the result of a call with those of its images, sounds and files that fit into a message.

    If its tool promises `is_structured`, a truncated result is an error: clients refuse text in its place.
    """
    answer = answered(result, await seen(result, lambda _: True))
    is_broken = is_structured and answer.structured_content is None
    return answer.model_copy(update={"is_error": True}) if is_broken else answer


def answered(result: ToolResult, seen: Mapping[str, bytes] = _NOTHING) -> types.CallToolResult:
    """Return the result of a call; a failed one has `isError` and its reason as text.

    An output that is a JSON object is included as structured content too. An output that was too long becomes a link to
    the whole, and so does a part whose bytes are not in `seen`.
    """
    meta = {f"{META}/execution-id": result.metadata.get("execution_id"), f"{META}/error-code": result.error_code}
    said = {key: str(value) for key, value in meta.items() if value is not None}
    return types.CallToolResult(
        content=_content(result, seen),
        structured_content=_structured(result),
        is_error=not result.success,
        _meta=said or None,
    )


def _content(result: ToolResult, seen: Mapping[str, bytes]) -> list[types.ContentBlock]:
    texts = [] if result.success else [_reason(result)]
    has_parts = CONTENT in result.metadata
    if not has_parts and (result.success or result.output is not None):  # its output before it failed
        texts.append(ToolResult.ok(result.output).to_text())
    content: list[types.ContentBlock] = [types.TextContent(text=_encodable(text)) for text in texts]
    if has_parts:
        content += [_block(part, seen) for part in result.content]
    link = _link(result)
    return [*content, link] if link else content


def _block(part: Part, seen: Mapping[str, bytes]) -> types.ContentBlock:
    if isinstance(part, Text | Json):
        return types.TextContent(text=_encodable(part.line))
    uri, name, kind = part.uri or "", _encodable(part.name or part.type), part.mime_type
    if isinstance(part, Link):
        return types.ResourceLink(uri=uri, name=name, description=part.description, mime_type=kind)
    if uri not in seen:
        return types.ResourceLink(uri=uri, name=name, description=part.note, mime_type=kind, size=part.size)
    if part.type == "file":
        return types.EmbeddedResource(resource=_contents(uri, seen[uri], kind=kind))
    data = base64.b64encode(seen[uri]).decode()
    if part.type == "image":
        return types.ImageContent(data=data, mime_type=kind or OCTETS)
    return types.AudioContent(data=data, mime_type=kind or OCTETS)


def _reason(result: ToolResult) -> str:
    lines = [str(one) for one in result.metadata.get("errors") or ()]
    text = result.to_text()
    more = [line for line in lines if line not in text]
    hint = result.metadata.get("hint")
    return "\n".join([text, *more, *([str(hint)] if hint else [])])


def _structured(result: ToolResult) -> dict[str, Any] | None:
    """Return the output if it is a JSON object: from a worker it is JSON, from a tool here it may be anything."""
    if not result.success or not isinstance(result.output, dict):
        return None
    try:
        text = encode_json(result.output, "output", _LONGEST)
    except InvalidCallError:
        return None
    strict: dict[str, Any] = json.loads(text)
    has_surrogates = "\\ud" in text  # `encode_json` writes ASCII
    return json.loads(_encodable(json.dumps(strict, ensure_ascii=False), "replace")) if has_surrogates else strict


def _encodable(text: str, errors: str = "backslashreplace") -> str:
    """Replace lone surrogates, which no transport can encode."""
    return text.encode("utf-8", errors).decode()


def _link(result: ToolResult) -> types.ResourceLink | None:
    handle = result.metadata.get("artifact")
    if not isinstance(handle, str) or artifact_id(handle) is None:
        return None
    holds = result.metadata.get("artifact_holds", "whole output")
    return types.ResourceLink(
        uri=handle,
        name=handle,
        title=f"The {holds}",
        description=f"The output was too long for a result. Read this resource for the {holds}, or add ?offset=LINE for a page.",
        mime_type="text/plain",
    )


class ArtifactReader(Protocol):
    async def find(self, id: str, session_id: str | None, /) -> Artifact | None: ...

    async def ids(self, session_id: str | None, beginning: str, most: int, /) -> list[str]: ...

    def read(self, artifact: Artifact, /) -> AsyncIterator[bytes]: ...

    async def page(self, artifact: Artifact, wish: PageWish, /) -> ArtifactPage: ...


class Resources:
    """Serves artifacts. They are not listed: results link to them, and a session sees only its own."""

    def __init__(self, artifacts: ArtifactReader, calls: Calls) -> None:
        self._artifacts = artifacts
        self._calls = calls

    async def list(self, _ctx: Context, _params: types.PaginatedRequestParams) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[])

    async def templates(self, _ctx: Context, _: types.PaginatedRequestParams) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=_TEMPLATES)

    async def complete(self, ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        """Complete the `id` of a template with the artifacts of the session; its numbers could be any."""
        ref, argument = params.ref, params.argument
        if isinstance(ref, types.PromptReference) or ref.uri not in {one.uri_template for one in _TEMPLATES}:
            known = " or ".join(one.uri_template for one in _TEMPLATES)
            asked = ref.name if isinstance(ref, types.PromptReference) else ref.uri
            raise invalid(f"There is nothing to complete for {shown(asked)}; ask for {known}")
        ids, session = list[str](), self._calls.session(ctx)
        # Over HTTP, clients of a protocol without sessions share ours, and must not learn each other's handles.
        is_shared = ctx.request is not None and session == self._calls.own_session
        if argument.name == "id" and not is_shared:
            ids = await self._artifacts.ids(session, argument.value, MOST_COMPLETED + 1)
        values, has_more = ids[:MOST_COMPLETED], len(ids) > MOST_COMPLETED
        return types.CompleteResult(completion=types.Completion(values=values, has_more=has_more))

    async def read(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        address, is_paged, query = params.uri.partition("?")
        id_ = artifact_id(address)
        artifact = await self._artifacts.find(id_, self._calls.session(ctx)) if id_ else None
        if artifact is None:
            code = types.INVALID_PARAMS if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else RESOURCE_NOT_FOUND
            message = f"Resource not found, or expired: {shown(params.uri)}"
            raise MCPError(code=code, message=message, data={"uri": params.uri})
        if is_paged:
            return await self._page(params.uri, artifact, _wish(query))
        if artifact.size > LARGEST:
            raise invalid(
                f"{artifact.handle} is {artifact.size:,} bytes; the limit for one resource is {LARGEST:,}. "
                f"Read it in pages, {artifact.handle}?offset=1 first, or with the tool Read, file_path {artifact.handle}."
            )
        data = b"".join([chunk async for chunk in self._artifacts.read(artifact)])
        return types.ReadResourceResult(contents=[_contents(params.uri, data)])

    async def _page(self, uri: str, artifact: Artifact, wish: PageWish) -> types.ReadResourceResult:
        try:
            page = await self._artifacts.page(artifact, wish)
        except InvalidCallError as error:
            raise invalid(error.message) from error
        meta: dict[str, Any] = {f"{META}/start": page.start, f"{META}/end": page.end, f"{META}/size": page.size}
        if page.next:
            limits = {"limit": wish.limit, "max_bytes": wish.max_bytes if wish.max_bytes != PAGE_BYTES else None}
            following = page.next | {name: value for name, value in limits.items() if value is not None}
            meta[f"{META}/next"] = f"{artifact.handle}?{urlencode(following)}"
        return types.ReadResourceResult(contents=[_contents(uri, page.data, meta)])


def _wish(query: str) -> PageWish:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        given = {name: int(value) for name, value in pairs}
        wish = PageWish(**{"max_bytes": PAGE_BYTES} | given)
    except (TypeError, ValueError) as error:
        names = ", ".join(field.name for field in fields(PageWish))
        raise invalid(f"{shown(query)} does not name a page. Give whole numbers for any of {names}.") from error
    if wish.most_bytes > LARGEST:
        raise invalid(f"max_bytes {wish.most_bytes:,} is more than {LARGEST:,}.")
    return wish


def _contents(
    uri: str, data: bytes, meta: dict[str, Any] | None = None, kind: str | None = None
) -> types.TextResourceContents | types.BlobResourceContents:
    try:
        if kind is not None and not kind.startswith(TEXTS):
            raise UnicodeError
        return types.TextResourceContents(uri=uri, mime_type=kind or "text/plain", text=data.decode(), _meta=meta)
    except UnicodeError:
        blob = base64.b64encode(data).decode()
        return types.BlobResourceContents(uri=uri, mime_type=kind or media_type(data), blob=blob, _meta=meta)
