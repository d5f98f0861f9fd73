"""Tools that fail before they succeed, or take their worker with them: what retries are tested with."""

import asyncio
import os
import signal
import time

from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from tests.marks import leave_mark

MARK = ToolParameter(name="mark", type="string", description="File to append the time to at each body start.")
FAILURES = ToolParameter(
    name="failures", type="integer", description="How many starts fail.", required=False, default=2
)
HARMLESS = ToolParameter(
    name="harmless", type="boolean", description="Whether failures say that nothing happened.", required=False
)


class Flaky(BaseTool):
    """Fail some times."""

    name = "Flaky"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True)
    lane = "async"
    parameters = (MARK, FAILURES, HARMLESS)

    async def _execute(
        self, context: ExecutionContext, mark: str, failures: int, harmless: bool | None = None
    ) -> ToolResult:
        start = leave_mark(mark, time.time())
        if start > failures:
            return ToolResult.ok(f"start {start}")
        said = {} if harmless is None else {"retryable": harmless}
        return ToolResult.fail(f"start {start} failed", error_code="FLAKY", **said)


class FlakyOrder(Flaky):
    """Fail some times, with effects that must not be repeated."""

    name = "FlakyOrder"
    capabilities = Capabilities()


class EndWorker(BaseTool):
    """End the worker it runs in, as a crash in C code does."""

    name = "EndWorker"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True)
    lane = "async"
    parameters = (MARK,)

    async def _execute(self, context: ExecutionContext, mark: str) -> ToolResult:
        leave_mark(mark, time.time())
        os.kill(os.getpid(), signal.SIGKILL)
        return ToolResult.ok("unreachable")


class Doze(BaseTool):
    """Await some seconds, harmlessly."""

    name = "Doze"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True)
    lane = "async"
    parameters = (
        MARK,
        ToolParameter(name="seconds", type="number", description="How long.", required=False, default=4),
    )

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        leave_mark(mark, time.time())
        await asyncio.sleep(seconds)
        return ToolResult.ok("awake")


FLAKY = (Flaky, FlakyOrder, EndWorker, Doze)
