"""A call without queue or database: `ToolExecutor.execute` beside LangChain's `ainvoke` and a bare await."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.scene import CONTEXT, Scene, succeeded
from benchmarks.tools import NoOp
from forge_tools.model import ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry


def execute(scene: Scene) -> Readings:
    registry = ScopedRegistry()
    registry.register(NoOp())
    executor = ToolExecutor(registry)

    async def call() -> ToolResult:
        return await executor.execute("NoOp", CONTEXT)

    succeeded(asyncio.run(call()))
    return _time(call, scene)


def bare(scene: Scene) -> Readings:
    tool = NoOp()

    async def call() -> ToolResult:
        return await tool._execute(CONTEXT)  # noqa: SLF001  the body alone, as its author wrote it

    return _time(call, scene)


def langchain(scene: Scene) -> Readings:
    from langchain_core.tools import StructuredTool  # an extra

    async def no_op() -> str:
        """Do nothing."""
        return "done"

    tool = StructuredTool.from_function(coroutine=no_op)

    async def call() -> Any:
        return await tool.ainvoke({})

    return _time(call, scene)


def _time(call: Callable[[], Awaitable[Any]], scene: Scene) -> Readings:
    async def run(times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            await call()
        return (time.perf_counter() - started) / times * 1e6

    async def warm_run() -> float:
        await run(
            scene.sizes.in_process
        )  # as many as an executor keeps: from then on its memory is that of a long life
        return await run(scene.sizes.in_process)

    return {"each": asyncio.run(warm_run())}


MEASURE = Measure(
    name="in-process",
    sides={"langchain": langchain, "execute": execute, "bare": bare},
    rows=[
        Row(
            title="execute in process, history and timeout on",
            unit="us",
            key="each",
            ours="execute",
            raw="langchain",
            bar=Bar("value", "at most", 35),
        ),
        Row(
            title="execute in process (LangChain's ainvoke)",
            unit="us",
            key="each",
            ours="execute",
            raw="langchain",
            bar=Bar("ratio", "at most", 0.12),
        ),
        Row(title="execute in process (a bare await)", unit="us", key="each", ours="execute", raw="bare"),
    ],
)
