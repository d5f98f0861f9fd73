"""Tools that a server in this process offers, and a host of servers."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.hosting import Host

MESSAGE = ToolParameter(name="message", type="string", description="What to say.")


class Say(BaseTool):
    """Return the message."""

    name = "Say"
    aliases = ("say",)
    category = ToolCategory.OTHER
    tags = ("plain",)
    capabilities = Capabilities(idempotent=True)
    parameters = (MESSAGE,)

    async def _execute(self, context: ExecutionContext, message: str) -> ToolResult:
        return ToolResult.ok(message)


class Loud(BaseTool):
    """Print, log and write to descriptor 1."""

    name = "Loud"
    category = ToolCategory.EXECUTION
    capabilities = Capabilities(executes_commands=True, accesses_network=True)
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        print("printed")
        os.write(1, b"written\n")
        return ToolResult.ok("loud")


class Wait(BaseTool):
    """Wait for ever, and note when it was told to stop."""

    name = "Wait"
    category = ToolCategory.OTHER
    parameters = ()

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        self.started.set()
        try:
            await asyncio.sleep(600)
        finally:
            self.stopped.set()
        return ToolResult.ok("unreachable")


class Local:
    """An executor over tools that a test may change."""

    def __init__(self, *tools: BaseTool) -> None:
        self.registry = ScopedRegistry()
        self.registry.register_many(tools)
        self.executor = ToolExecutor(self.registry)
        self.contexts: list[ExecutionContext] = []

    async def call(self, name: str, arguments: Any, context: ExecutionContext, /) -> ToolResult:
        self.contexts.append(context)
        return await self.executor.call(name, arguments, context)

    def specs(self) -> Any:
        return self.executor.specs()


@pytest.fixture
def local() -> Local:
    return Local(Say(), Loud())


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    yield host
    await host.stop()
