"""One tool of a server as one of ours: its name here, its capabilities, and its answers as results."""

import base64
import binascii
import json
import re
from hashlib import sha256
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import ValidationError

from forge_tools.mcp.hosted.connection import DISCONNECTED, Connection, DisconnectedError, GoneError
from forge_tools.mcp.thread import LoopThread, StoppedError
from forge_tools.model import Audio, File, Image, Lane, Link, Media, Part, Text
from forge_tools.schema import clean_text
from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult

TAG = "mcp"
TOOL_ERROR = "MCP_TOOL_ERROR"

MAX_NAME = 64
"""The most characters that providers accept."""

MAX_STRUCTURED_CHARS = 100_000
"""The limit for structured content beside a text, in metadata; without one it is the output, with its own limit."""

_HEAD = 40
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


class ServerTool(BaseTool):
    """Forwards calls to a server."""

    name: str = ""
    description: str = ""
    category = ToolCategory.MCP
    lane: Lane = "async"
    parameters: tuple[ToolParameter, ...] = ()

    def __init__(self, tool: Tool, connection: Connection, thread: LoopThread) -> None:
        server = connection.server
        self.name = tool_name(server.name, tool.name)
        said = clean_text((tool.description or tool.title or "").strip())
        self.description = said or f"The tool {clean_text(tool.name)} of the MCP server {clean_text(server.name)}."
        self.input_schema = tool.input_schema
        self.capabilities = capabilities_of(tool.annotations if server.trust_annotations else None)
        self.tags = (TAG, clean_text(server.name))
        self.timeout = server.timeout
        if server.command and connection.walls.tier(server) != "plain":
            self.walls = "namespace"
        self._called = tool.name
        self._connection = connection
        self._thread = thread

    async def _execute(self, context: ExecutionContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]  # names come as keywords alone
        result = await self._passed_on(arguments, context)
        server = self._connection.server
        result.metadata["server"] = server.name
        if server.command:
            result.metadata["walls"] = self._connection.walls.tier(server)
        return result

    async def _dry_run(self, context: ExecutionContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]  # as above
        return await super()._dry_run(context, **arguments)

    async def _passed_on(self, arguments: dict[str, Any], context: ExecutionContext) -> ToolResult:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            context.progress(progress, total, message)

        try:
            answer = await self._thread.run(self._connection.call(self._called, arguments, tell))
        except StoppedError:
            said = "MCP servers can no longer be called: this worker is stopping."
            return ToolResult.fail(said, error_code=DISCONNECTED, retryable=True)
        except DisconnectedError as error:
            known = {} if error.had_begun else {"retryable": True}
            return ToolResult.fail(error.message, error_code=error.code, **known)
        except GoneError as error:
            return ToolResult.fail(error.message, error_code=error.code, retryable=False)
        except MCPError as error:
            said = f"The MCP server '{self._connection.server.name}' refused the call: {error.message}"
            return ToolResult.fail(said, error_code=TOOL_ERROR, error_details={"code": error.code})
        except (RuntimeError, ValidationError) as error:
            said = f"The answer of the MCP server '{self._connection.server.name}' is not a result: {error}"
            return ToolResult.fail(said[:2000], error_code=TOOL_ERROR)
        return result_of(answer)


def capabilities_of(hints: ToolAnnotations | None) -> Capabilities:
    """Trust a server's hints; assume the worst for what it does not state."""
    hints = hints or ToolAnnotations()
    is_read_only = hints.read_only_hint is True
    return Capabilities(
        writes_files=not is_read_only,
        executes_commands=not is_read_only and hints.destructive_hint is not False,
        accesses_network=hints.open_world_hint is not False,
        idempotent=is_read_only or hints.idempotent_hint is True,
    )


def tool_prefix(server: str) -> str:
    """Return the beginning of the names of all tools of a server."""
    return _FOREIGN.sub("_", f"mcp__{server}__")[:_HEAD]


def tool_name(server: str, tool: str) -> str:
    """Return `mcp__server__tool`, with a hash of both if that would be too long or ambiguous.

    It depends only on the two, so that adding or removing a tool renames no other.
    """
    plain = f"mcp__{server}__{tool}"
    name = _FOREIGN.sub("_", plain)
    if name == plain and len(name) <= MAX_NAME and "__" not in f"{server}_":
        return name
    mark = sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    if len(name) + len(mark) + 1 <= MAX_NAME:
        return f"{name}_{mark}"
    head = f"{name[:_HEAD]}_{mark}_"
    return head + name[len(head) - MAX_NAME :]


def result_of(answer: CallToolResult) -> ToolResult:
    """Map an answer: its texts joined, and other content as parts between them.

    Structured content becomes the output if there is nothing else, otherwise `structured` in the metadata.
    """
    parts = [_part(block) for block in answer.content]
    texts = [clean_text(part.text) for part in parts if isinstance(part, Text)]
    output: Any = "\n".join(texts) if len(texts) == len(parts) else parts
    structured = answer.structured_content
    encoded = "" if structured is None else json.dumps(structured, default=str)
    metadata: dict[str, Any] = {}
    if output and structured is not None:
        is_small = len(encoded) <= MAX_STRUCTURED_CHARS
        metadata = {"structured": structured} if is_small else {"structured_omitted_chars": len(encoded)}
    if answer.is_error:
        error = "\n".join(texts) or encoded or "The server reported a failure without a reason."
        failed = ToolResult.fail(error, error_code=TOOL_ERROR, **metadata)
        return failed if isinstance(output, str) else failed.model_copy(update={"output": output})
    return ToolResult.ok(output if output or structured is None else structured, **metadata)


def _part(block: ContentBlock) -> Part:
    if isinstance(block, TextContent):
        return Text(block.text)
    if isinstance(block, ResourceLink):
        return Link(str(block.uri), block.name, block.mime_type, block.description)
    if not isinstance(block, EmbeddedResource):
        kind = Image if block.type == "image" else Audio
        return _media(kind, block.type, block.data, block.mime_type)
    resource, uri = block.resource, str(block.resource.uri)
    if isinstance(resource, BlobResourceContents):
        return _media(File, f"resource {uri}", resource.blob, resource.mime_type, name=uri.rpartition("/")[2] or None)
    return Text(f"[resource {uri}{f' ({resource.mime_type})' if resource.mime_type else ''}]\n{resource.text}")


def _media(kind: type[Media], what: str, data: str, mime_type: str | None, name: str | None = None) -> Part:
    try:
        return kind(base64.b64decode(data, validate=True), name, mime_type)
    except (binascii.Error, ValueError):
        return Text(f"[{what}: its data is not base64]")
