"""A call through our MCP server: in process beside a server of the bare SDK, and on workers beside our own `execute`."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any, Literal

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.scene import CONTEXT, Scene, succeeded
from benchmarks.tools import NoOp
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry

FLEET: Literal["postgres-solo"] = "postgres-solo"
Work = Callable[[], Awaitable[Any]]


def in_process(scene: Scene) -> Readings:
    from mcp import Client  # an extra

    from forge_tools.mcp.server import ToolServer  # needs the extra
    from forge_tools.mcp.thread import ToolThread

    registry = ScopedRegistry()
    registry.register(NoOp())

    async def run(tools: ToolThread) -> Readings:
        async with (
            Client(ToolServer(tools), mode="legacy") as ours,
            Client(_bare_server(), mode="legacy") as bare,
        ):
            return await _compare(_calls(ours), _calls(bare), scene.sizes.round_trips)

    with ToolThread(ToolExecutor(registry)) as tools:  # as the command does
        return asyncio.run(run(tools))


def on_workers(scene: Scene) -> Readings:
    from mcp import Client  # an extra

    from forge_tools.mcp.server import ToolServer  # needs the extra

    async def run() -> Readings:
        async with scene.client(FLEET) as client:

            async def execute() -> None:
                succeeded(await client.execute("NoOp", CONTEXT))

            async with Client(ToolServer(client), mode="legacy") as ours:
                return await _compare(_calls(ours), execute, scene.sizes.round_trips)

    return asyncio.run(run())


def _bare_server() -> Any:
    """A server of the SDK with nothing behind it."""
    from mcp import types  # an extra
    from mcp.server.lowlevel import Server

    async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
        schema = {"type": "object", "properties": {}}
        return types.ListToolsResult(tools=[types.Tool(name="NoOp", description="Do nothing.", input_schema=schema)])

    async def call_tool(_ctx: Any, _params: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text="done")])

    return Server("bare", on_list_tools=list_tools, on_call_tool=call_tool)


def _calls(client: Any) -> Work:
    async def call() -> None:
        result = await client.call_tool("NoOp", {})
        if result.is_error:
            raise RuntimeError(f"A measured call failed: {result.content}")

    return call


async def _compare(ours: Work, other: Work, times: int) -> Readings:
    """The medians of both, by turns, so that whatever else the machine does slows them alike."""
    for _ in range(times // 10):
        await ours()
        await other()
    pairs = [(await _timed(ours), await _timed(other)) for _ in range(times)]
    mine, theirs = (median(side) for side in zip(*pairs, strict=True))
    return {"ours": mine, "other": theirs, "over": mine - theirs}


async def _timed(work: Work) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


def _rows(side: str, where: str, other: str, limit: float) -> list[Row]:
    return [
        Row(title=f"MCP call {where} p50 ({other})", unit="ms", key="ours", ours=side, raw=side, raw_key="other"),
        Row(
            title=f"MCP call {where}, over {other}",
            unit="ms",
            key="over",
            ours=side,
            bar=Bar("value", "at most", limit),
        ),
    ]


MEASURE = Measure(
    name="mcp",
    needs=frozenset({FLEET}),
    sides={"in process": in_process, "workers": on_workers},
    rows=[
        *_rows("in process", "in process", "the bare SDK", 0.5),
        *_rows("workers", "on workers", "our own execute", 3),
    ],
)
