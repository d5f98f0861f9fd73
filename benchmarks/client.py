"""`python -m benchmarks.client`: our client; it executes commands from its standard input, one at a time.

It imports only the standard library and public names, so that the same file can measure `forge_tools` of any commit.
"""

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import forge_tools
from forge_tools import ExecutionContext, ExecutorClient, ScopedRegistry, ToolExecutor, ToolResult
from forge_tools.tools import BUILTINS

CONTEXT = ExecutionContext(working_dir=".", agent_id="benchmark")
PATIENCE_SECONDS = 300.0
LISTED = 50


async def lone(client: ExecutorClient, *, calls: int) -> list[float]:
    """Make calls one after the other; return the milliseconds of each."""
    return [await _timed(client.execute("NoOp", CONTEXT)) for _ in range(calls)]


async def burst(client: ExecutorClient, *, calls: int) -> float:
    """Make calls all at once; return the calls per second."""
    started = time.perf_counter()
    results = await asyncio.gather(*(client.execute("NoOp", CONTEXT) for _ in range(calls)))
    seconds = time.perf_counter() - started
    for result in results:
        _succeeded(result)
    return calls / seconds


async def history(client: ExecutorClient, *, pages: int) -> float:
    """List the newest executions, so many times; return the median milliseconds per page."""
    return median([await _timed(client.history.list(limit=LISTED)) for _ in range(pages)])


async def tool(_: ExecutorClient, *, name: str, parameters: Mapping[str, Any], turns: int) -> float:
    """A built-in in this process, in a folder with a `text`, not waiting for the disk; returns the milliseconds of a call, the median."""
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    executor = ToolExecutor(registry)
    with tempfile.TemporaryDirectory() as folder, patch.object(os, "fsync", lambda _: None):
        Path(folder, "text").write_text("a line of an ordinary length, with words in it\n" * 200)
        context = ExecutionContext(working_dir=folder, agent_id="benchmark")
        return median([await _timed(executor.execute(name, context, **parameters)) for _ in range(turns)])


async def source(_: ExecutorClient) -> str:
    """Return where the measured `forge_tools` comes from."""
    return str(forge_tools.__file__)


WORKS: Mapping[str, Callable[..., Awaitable[object]]] = {
    work.__name__: work for work in (lone, burst, history, tool, source)
}


async def _timed(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    done = await work
    milliseconds = (time.perf_counter() - started) * 1000
    if isinstance(done, ToolResult):
        _succeeded(done)
    return milliseconds


def _succeeded(result: ToolResult) -> None:
    if not result.success:
        raise RuntimeError(f"A measured call failed: {result.error}")


async def serve() -> None:
    """Answer until the input ends. Between commands the loop is idle, as in an agent that thinks."""
    asked = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    async with ExecutorClient.connect() as client:
        gc.collect()
        gc.freeze()
        while line := await asked.readline():
            what, how = json.loads(line)
            print(json.dumps(await _answer(client, what, how)), flush=True)


async def _answer(client: ExecutorClient, what: str, how: Mapping[str, Any]) -> Mapping[str, object]:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return {"answer": await WORKS[what](client, **how)}
    except Exception as error:  # the caller gets the error, and decides
        return {"error": f"{type(error).__name__}: {error}"}


def _loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """With `BENCH_UVLOOP=1` the loop of uvloop, which is the caller's choice in a client."""
    return import_module("uvloop").new_event_loop if os.environ.get("BENCH_UVLOOP") == "1" else None


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_loop()) as runner:
        runner.run(serve())
