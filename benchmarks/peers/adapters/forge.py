"""forge_tools: the public client, every call a row in PostgreSQL; settings come from `FORGE_*`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.tools import Sleep
from forge_tools.client import ExecutorClient
from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult

CONTEXT = ExecutionContext(working_dir=".", agent_id="benchmark")


class Echo(BaseTool):
    """Give a number back."""

    name = "Echo"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (ToolParameter(name="number", type="integer", description="What to give back."),)

    async def _execute(self, context: ExecutionContext, number: int) -> ToolResult:
        return ToolResult.ok(str(number))


TOOLS = (Echo, Sleep)


class Client:
    """Gathers `execute` calls, as an agent that calls many tools would."""

    def __init__(self, executor: ExecutorClient) -> None:
        self._executor = executor

    async def call(self, number: int) -> int:
        return int(_output(await self._executor.execute("Echo", CONTEXT, number=number)))

    async def burst(self, numbers: range) -> list[int]:
        return list(await asyncio.gather(*(self.call(number) for number in numbers)))

    async def sleeps(self, count: int, seconds: float) -> list[str]:
        calls = (self._executor.execute("Sleep", CONTEXT, seconds=seconds) for _ in range(count))
        return [_output(result) for result in await asyncio.gather(*calls)]


@asynccontextmanager
async def connect() -> AsyncIterator[Client]:
    async with ExecutorClient.connect() as executor:
        yield Client(executor)


def _output(result: ToolResult) -> str:
    if not result.success or not isinstance(result.output, str):
        raise RuntimeError(f"A measured call failed: {result.error}")
    return result.output
