"""Tools of the async lane that block its loop, or will not stop."""

import asyncio
import time
from pathlib import Path

from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult

HOW = ToolParameter(name="how", type="string", description="How to be careless.")
SECONDS = ToolParameter(name="seconds", type="number", description="How long.", required=False, default=3)
MARK = ToolParameter(name="mark", type="string", description="File to append a line to at each sign of life.")


def leave_mark(mark: str) -> None:
    with Path(mark).open("a") as file:
        file.write(f"{time.time()}\n")


class Careless(BaseTool):
    """Hold the event loop: `nap`, `spin`, or `nap later` after an await; `well` does not."""

    name = "Careless"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (HOW, SECONDS, MARK)

    async def _execute(self, context: ExecutionContext, how: str, seconds: float, mark: str) -> ToolResult:
        leave_mark(mark)
        if how == "spin":
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
        elif how == "nap later":
            await asyncio.sleep(0.01)
        if how.startswith("nap"):
            time.sleep(seconds)
        return ToolResult.ok(how)


class CarelessIdempotent(Careless):
    """Hold the event loop, harmlessly."""

    name = "CarelessIdempotent"
    capabilities = Capabilities(idempotent=True)


class Stubborn(BaseTool):
    """Swallow cancellation, in the body itself or in a task of its own, and leave a mark every 50 ms."""

    name = "Stubborn"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (HOW, MARK)

    async def _execute(self, context: ExecutionContext, how: str, mark: str) -> ToolResult:
        if how == "in a task":
            self.kept = asyncio.create_task(_live_on(mark))
            await asyncio.sleep(600)
        await _live_on(mark)
        return ToolResult.ok("unreachable")


async def _live_on(mark: str) -> None:
    while True:  # no deadline: what a tool leaves running for ever is the case
        try:
            await asyncio.sleep(0.05)
            leave_mark(mark)
        except asyncio.CancelledError:
            continue


CARELESS = (Careless, CarelessIdempotent, Stubborn)
