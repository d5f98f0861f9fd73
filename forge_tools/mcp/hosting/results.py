"""What a server answered to a call, as the result of ours."""

import base64
import binascii
import json
from collections.abc import AsyncIterator
from typing import Any

from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ResourceLink,
    TextContent,
)

from forge_tools.records import ExecutionContext, ToolResult
from forge_tools.sandbox.artifacts import keep
from forge_tools.validation import clean_text

TOOL_ERROR = "MCP_TOOL_ERROR"
TOOL_GONE = "MCP_TOOL_GONE"
DISCONNECTED = "MCP_DISCONNECTED"

MAX_STRUCTURED_CHARS = 100_000
"""Of structured content beside a text, in metadata; without a text it is the output, which has its own limit."""

KEEP_SECONDS = 10.0


async def result_of(answer: CallToolResult, context: ExecutionContext) -> ToolResult:
    """Map an answer: its texts joined, other content described there and in `content` of the metadata.

    Images, sounds and binary resources are kept as artifacts where this host has any. Structured content is the output where no
    text says the same, else `structured` in the metadata.
    """
    parts: list[str] = []
    described: list[dict[str, Any]] = []
    for block in answer.content:
        text, facts = await _shown(block, context)
        parts.append(text)
        if facts:
            described.append(facts)
    text = clean_text("\n".join(parts))
    metadata: dict[str, Any] = {"content": described} if described else {}
    structured = answer.structured_content
    output: Any = text
    if structured is not None and not text:
        output = structured
    elif structured is not None:
        metadata |= _beside(structured)
    if not answer.is_error:
        return ToolResult.ok(output, **metadata)
    error = text or (json.dumps(structured, default=str) if structured is not None else "")
    return ToolResult.fail(error or "The server says that it failed, and not why.", error_code=TOOL_ERROR, **metadata)


def _beside(structured: Any) -> dict[str, Any]:
    size = len(json.dumps(structured, default=str))
    return {"structured": structured} if size <= MAX_STRUCTURED_CHARS else {"structured_omitted_chars": size}


async def _shown(block: ContentBlock, context: ExecutionContext) -> tuple[str, dict[str, Any]]:
    """Return a block as text, and what the metadata say of it unless it is nothing but text."""
    if isinstance(block, TextContent):
        return block.text, {}
    if isinstance(block, ResourceLink):
        facts = _given(type="resource_link", uri=str(block.uri), name=block.name, mime_type=block.mime_type)
        return f"[resource {block.name}{_of(block.mime_type)}: {block.uri}]", facts
    if isinstance(block, EmbeddedResource):
        return await _resource(block, context)
    return await _binary(block.type, block.mime_type, block.data, context)


async def _resource(block: EmbeddedResource, context: ExecutionContext) -> tuple[str, dict[str, Any]]:
    resource = block.resource
    uri, kind = str(resource.uri), resource.mime_type
    if isinstance(resource, BlobResourceContents):
        return await _binary(f"resource {uri}", kind, resource.blob, context, uri=uri)
    return f"[resource {uri}{_of(kind)}]\n{resource.text}", _given(type="resource", uri=uri, mime_type=kind)


async def _binary(
    what: str, kind: str | None, data: str, context: ExecutionContext, **known: str
) -> tuple[str, dict[str, Any]]:
    facts = _given(type="resource" if known else what, mime_type=kind, **known)
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[{what}{_of(kind)}: its data are no base64]", facts
    facts["bytes"] = len(content)
    facts |= await keep(_whole(content), context, KEEP_SECONDS)
    where = f": {facts['artifact']}" if "artifact" in facts else ""
    return f"[{what}{_of(kind)}, {len(content):,} bytes{where}]", facts


async def _whole(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _of(kind: str | None) -> str:
    return f" ({kind})" if kind else ""


def _given(**facts: str | None) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
