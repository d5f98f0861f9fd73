"""The demo's own tool; a worker loads it by `--tools forge_tools.cli.demo_tools:TOOLS`."""

import os
import time
from pathlib import Path

from forge_tools.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult


class Hang(BaseTool):
    """Block for an hour without ever awaiting, as careless code does."""

    name = "Hang"
    category = ToolCategory.OTHER
    parameters = (ToolParameter(name="pid_file", type="string", description="Where to write its process id first."),)

    async def _execute(self, context: ExecutionContext, pid_file: str) -> ToolResult:
        Path(pid_file).write_text(str(os.getpid()))  # noqa: ASYNC240 this tool blocks anyway
        time.sleep(3600)  # noqa: ASYNC251 blocking is the point
        return ToolResult.ok("It should not have come to this.")


TOOLS = (Hang,)
