"""A tool that needs nothing but this file, and takes some milliseconds."""

import asyncio

from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult


class Greet(BaseTool):
    """Greet somebody."""

    name = "Greet"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True)
    lane = "async"
    parameters = (
        ToolParameter(name="name", type="string", description="Whom to greet."),
        ToolParameter(name="secret", type="string", description="What nobody else may know.", sensitive=True),
    )

    async def _execute(self, context: ExecutionContext, name: str, secret: str) -> ToolResult:
        await asyncio.sleep(0.02)
        return ToolResult.ok(f"hello {name}, {len(secret)}")


TOOLS = (Greet,)
