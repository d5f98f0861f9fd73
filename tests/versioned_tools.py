"""One tool in two versions that differ in what they take and say which they are; `FIRST` and `SECOND` are deployed in turn."""

from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult

NAME = ToolParameter(name="name", type="string", description="Whom to greet.")


class Greet(BaseTool):
    """Greet somebody."""

    name = "Greet"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True)
    lane = "async"
    parameters = (NAME,)

    async def _execute(self, context: ExecutionContext, name: str) -> ToolResult:
        return ToolResult.ok(f"1.0: hello {name}")


class GreetBetter(Greet):
    """Greet somebody in their language."""

    version = "1.1.0"
    parameters = (
        NAME,
        ToolParameter(name="language", type="string", description="Of theirs.", required=False, default="en"),
    )

    async def _execute(self, context: ExecutionContext, name: str, language: str) -> ToolResult:
        return ToolResult.ok(f"1.1: hello {name} ({language})")


FIRST = (Greet,)
SECOND = (GreetBetter,)
