"""Tools of the mixed test: each greets, in one of the two lanes, and uses all that a body can send back."""

import asyncio

from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult


class Greet(BaseTool):
    """Greet somebody in the async lane, so many times."""

    name = "Greet"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True)
    lane = "async"
    parameters = (
        ToolParameter(name="name", type="string", description="Whom to greet."),
        ToolParameter(name="secret", type="string", description="What nobody else may know.", sensitive=True),
        ToolParameter(name="times", type="integer", description="How often."),
        ToolParameter(name="seconds", type="number", description="How long to take."),
    )

    async def _execute(
        self, context: ExecutionContext, name: str, secret: str, times: int, seconds: float
    ) -> ToolResult:
        context.progress(1, 2, f"about to greet {name}")
        await asyncio.sleep(seconds)
        return ToolResult.ok("\n".join([f"hello {name}, {len(secret)}"] * times))


class GreetInProcess(Greet):
    """Greet somebody in a process of its own."""

    name = "GreetInProcess"
    lane = "process"


TOOLS = (Greet, GreetInProcess)
