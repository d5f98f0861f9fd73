"""One tool of a server, as a tool of ours."""

from typing import Any

from mcp.shared.exceptions import MCPError
from mcp.types import Tool, ToolAnnotations
from pydantic import ValidationError

from forge_tools.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.mcp.hosting.connection import Connection, DisconnectedError, GoneError
from forge_tools.mcp.hosting.naming import tool_name
from forge_tools.mcp.hosting.results import TOOL_ERROR, result_of
from forge_tools.mcp.hosting.thread import ConnectionThread
from forge_tools.records import Lane
from forge_tools.validation import clean_text

TAG = "mcp"


class ServerTool(BaseTool):
    """Passes calls on to a server."""

    name: str = ""
    description: str = ""
    category = ToolCategory.MCP
    lane: Lane = "async"
    parameters: tuple[ToolParameter, ...] = ()

    def __init__(self, tool: Tool, connection: Connection, thread: ConnectionThread) -> None:
        server = connection.server
        self.name = tool_name(server.name, tool.name)
        said = clean_text((tool.description or tool.title or "").strip())
        self.description = said or f"The tool {clean_text(tool.name)} of the MCP server {clean_text(server.name)}."
        self.input_schema = tool.input_schema
        self.capabilities = capabilities_of(tool.annotations if server.trust_annotations else None)
        self.tags = (TAG, clean_text(server.name))
        self.timeout = server.timeout
        self._called = tool.name
        self._connection = connection
        self._thread = thread

    async def _execute(self, context: ExecutionContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]  # names come as keywords alone
        result = await self._passed_on(arguments, context)
        result.metadata["server"] = self._connection.server.name
        return result

    async def _dry_run(self, context: ExecutionContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]  # as above
        return await super()._dry_run(context, **arguments)

    async def _passed_on(self, arguments: dict[str, Any], context: ExecutionContext) -> ToolResult:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            context.progress(progress, total, message)

        try:
            answer = await self._thread.run(self._connection.call(self._called, arguments, tell))
        except DisconnectedError as error:
            known = {} if error.had_begun else {"retryable": True}
            return ToolResult.fail(error.message, error_code=error.code, **known)
        except GoneError as error:
            return ToolResult.fail(error.message, error_code=error.code, retryable=False)
        except MCPError as error:
            said = f"The MCP server '{self._connection.server.name}' refused the call: {error.message}"
            return ToolResult.fail(said, error_code=TOOL_ERROR, error_details={"code": error.code})
        except (RuntimeError, ValidationError) as error:
            said = f"What the MCP server '{self._connection.server.name}' answered is no result: {error}"
            return ToolResult.fail(said[:2000], error_code=TOOL_ERROR)
        return await result_of(answer, context)


def capabilities_of(hints: ToolAnnotations | None) -> Capabilities:
    """Take a server at its word; what it does not say is the worst there may be."""
    hints = hints or ToolAnnotations()
    is_read_only = hints.read_only_hint is True
    return Capabilities(
        writes_files=not is_read_only,
        executes_commands=not is_read_only and hints.destructive_hint is not False,
        accesses_network=hints.open_world_hint is not False,
        idempotent=is_read_only or hints.idempotent_hint is True,
    )
