"""The tools that are measured: they do nothing, wait, or carry something."""

import asyncio
import tempfile
from pathlib import Path

from forge_tools.model import Lane
from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult


class NoOp(BaseTool):
    """Do nothing, in the async lane."""

    name = "NoOp"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane: Lane = "async"
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        return ToolResult.ok("done")


class NoOpProcess(NoOp):
    """Do nothing, in the process lane."""

    name = "NoOpProcess"
    lane: Lane = "process"


class Files(BaseTool):
    """Write, read and remove small files in the workspace, in the process lane."""

    name = "Files"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane: Lane = "process"
    parameters = (ToolParameter(name="count", type="integer", description="How many.", minimum=0),)

    async def _execute(self, context: ExecutionContext, count: int) -> ToolResult:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(count):
                path = Path(folder, str(number))
                path.write_bytes(b"x" * 1_000)
                path.read_bytes()
                path.unlink()
        return ToolResult.ok("done")


class Sleep(BaseTool):
    """Await some seconds, in the async lane."""

    name = "Sleep"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (ToolParameter(name="seconds", type="number", description="How long.", minimum=0),)

    async def _execute(self, context: ExecutionContext, seconds: float) -> ToolResult:
        await asyncio.sleep(seconds)
        return ToolResult.ok("slept")


class Swallow(BaseTool):
    """Take a text and answer with its length, in the async lane."""

    name = "Swallow"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (ToolParameter(name="text", type="string", description="Any text."),)

    async def _execute(self, context: ExecutionContext, text: str) -> ToolResult:
        return ToolResult.ok(str(len(text)))


class Produce(BaseTool):
    """Answer with a text of some length, in the async lane."""

    name = "Produce"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (ToolParameter(name="size", type="integer", description="How many characters.", minimum=0),)

    async def _execute(self, context: ExecutionContext, size: int) -> ToolResult:
        return ToolResult.ok("x" * size)


TOOLS = (NoOp, NoOpProcess, Files, Sleep, Swallow, Produce)
