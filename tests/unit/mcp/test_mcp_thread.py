"""Tools on a thread of their own: what blocks there keeps nobody here waiting."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from forge_tools.mcp import thread
from forge_tools.mcp.thread import ToolThread
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.unit.mcp.conftest import Say, Wait
from tests.waiting import reached

HERE = ExecutionContext(working_dir=".")
LET_GO = threading.Event()


class Block(BaseTool):
    """Block the interpreter's thread until the test lets it go."""

    name = "Block"
    category = ToolCategory.OTHER
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        LET_GO.wait(30)
        return ToolResult.ok("blocked")


@pytest.fixture(autouse=True)
def _blocks() -> Iterator[None]:
    LET_GO.clear()
    yield
    LET_GO.set()


def executor_of(*tools: BaseTool) -> ToolExecutor:
    registry = ScopedRegistry()
    registry.register_many(tools)
    return ToolExecutor(registry)


async def test_a_tool_that_blocks_does_not_block_its_caller() -> None:
    with ToolThread(executor_of(Block())) as tools:
        calling = asyncio.ensure_future(tools.call("Block", {}, HERE))
        started = time.monotonic()
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert time.monotonic() - started < 20
        LET_GO.set()
        assert (await calling).output == "blocked"


async def test_cancelling_here_cancels_over_there() -> None:
    wait = Wait()
    executor = executor_of(wait)
    with ToolThread(executor) as tools:
        calling = asyncio.ensure_future(tools.call("Wait", {}, HERE))
        await reached(wait.started.is_set)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await reached(wait.stopped.is_set)

    assert [one.result.error_code for one in executor.get_executions()] == ["CANCELLED"]


async def test_the_end_cancels_calls_and_waits_for_them() -> None:
    wait = Wait()
    with ToolThread(executor_of(wait)) as tools:
        calling = asyncio.ensure_future(tools.call("Wait", {}, HERE))
        await reached(wait.started.is_set)

    assert wait.stopped.is_set()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_a_tool_that_blocks_is_not_waited_for_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "END_PATIENCE", 0.1)
    with ToolThread(executor_of(Block())) as tools:
        calling = asyncio.ensure_future(tools.call("Block", {}, HERE))
        await asyncio.sleep(0.05)
        started = time.monotonic()

    assert time.monotonic() - started < 20
    calling.cancel()


async def test_the_tools_are_told_without_asking_the_thread() -> None:
    with ToolThread(executor_of(Say())) as tools:
        assert [spec.name for spec in tools.specs()] == ["Say"]
