"""The demo's own tools; a worker loads them by `--tools examples.demo.tools:TOOLS`."""

import asyncio
import os
import time
from pathlib import Path

from examples.demo.effects import note
from forge_tools.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult


class Hang(BaseTool):
    """Block for an hour without ever awaiting, as careless code does."""

    name = "Hang"
    category = ToolCategory.OTHER
    parameters = (ToolParameter(name="pid_file", type="string", description="Where to write its process id first."),)

    async def _execute(self, context: ExecutionContext, pid_file: str) -> ToolResult:
        Path(pid_file).write_text(str(os.getpid()))  # noqa: ASYNC240 this tool blocks anyway
        time.sleep(3600)  # noqa: ASYNC251 blocking is the point
        return ToolResult.ok("It should not have come to this.")


class _Noted(BaseTool):
    """Take a moment, and note outside SQL when it starts and ends."""

    category = ToolCategory.OTHER
    parameters = (
        ToolParameter(name="key", type="string", description="What to call it in the notes."),
        ToolParameter(name="seconds", type="number", description="How long it takes."),
        ToolParameter(name="log", type="string", description="The file of the notes."),
    )

    async def _execute(self, context: ExecutionContext, key: str, seconds: float, log: str) -> ToolResult:
        note(log, key, "start")
        await asyncio.sleep(seconds)
        note(log, key, "end")
        return ToolResult.ok(key)


class Fetch(_Noted):
    """Take a moment; running it again is harmless."""

    name = "Fetch"
    lane = "async"
    capabilities = Capabilities(idempotent=True)


class Notify(_Noted):
    """Take a moment; nobody may do it twice."""

    name = "Notify"
    lane = "async"


class Render(_Noted):
    """Take a moment in a process of its own; running it again is harmless."""

    name = "Render"
    capabilities = Capabilities(idempotent=True)


class Charge(_Noted):
    """Take a moment in a process of its own; nobody may do it twice."""

    name = "Charge"


TOOLS = (Hang, Fetch, Notify, Render, Charge)
