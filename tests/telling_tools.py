"""Tools that report while they run: as they should, from threads and forks, in floods, and with hostile text."""

import asyncio
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

from forge_tools.tool import tool
from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from tests.waiting import reached, wait_until

STEPS = ToolParameter(name="steps", type="integer", description="How many.", required=False, default=3)
PAUSE = ToolParameter(name="pause", type="number", description="Seconds for each.", required=False, default=0.3)
HOSTILE = [
    "nul \0 here\n",
    "half \ud800 a pair\n",
    b"\xff\xfe bytes\n",
    "\x1b[31mred\x1b[0m\n",
    "x" * 1_000_000 + "\n",
    7,
]
GO = ToolParameter(
    name="go", type="string", description="A file to wait for after the first step.", required=False, default=""
)
FLOOD_BYTES = 50_000_000
FLOOD_LINE = "a line of a flood, of which there are very many, and nobody will ever read them all\n"


class Count(BaseTool):
    """Count, and say so."""

    name = "Count"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (STEPS, PAUSE, GO)

    async def _execute(self, context: ExecutionContext, steps: int, pause: float, go: str) -> ToolResult:
        for step in range(1, steps + 1):
            context.emit(f"line {step}\n")
            context.progress(step, steps, f"step {step}")
            await asyncio.sleep(pause)
            await reached(lambda: not go or Path(go).exists())
        return ToolResult.ok(steps)


class CountBlocking(Count):
    """Count without ever giving the loop a turn."""

    name = "CountBlocking"
    lane = "process"

    async def _execute(self, context: ExecutionContext, steps: int, pause: float, go: str) -> ToolResult:
        for step in range(1, steps + 1):
            context.emit(f"line {step}\n")
            context.progress(step, steps, f"step {step}")
            time.sleep(pause)
            wait_until(lambda: not go or Path(go).exists())
        context.emit("the end\n")
        return ToolResult.ok(steps)


class CountInThreads(Count):
    """Tell from threads that know no context variables."""

    name = "CountInThreads"

    async def _execute(self, context: ExecutionContext, steps: int, pause: float, go: str) -> ToolResult:
        threads = [threading.Thread(target=context.emit, args=(f"line {step}\n",)) for step in range(1, steps + 1)]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(context.progress, steps, steps)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        return ToolResult.ok(steps)


class CountInThreadsOfProcess(CountInThreads):
    """The same in a process."""

    name = "CountInThreadsOfProcess"
    lane = "process"


class TellAndStay(BaseTool):
    """Tell the process, and stay."""

    name = "TellAndStay"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True)
    lane = "async"
    parameters = (PAUSE,)

    async def _execute(self, context: ExecutionContext, pause: float) -> ToolResult:
        context.emit(f"in {os.getpid()}\n")
        context.progress(1, 2)
        await asyncio.sleep(pause)
        return ToolResult.ok(os.getpid())


class TellAndStayInProcess(TellAndStay):
    """The same in a process."""

    name = "TellAndStayInProcess"
    lane = "process"


class Flood(BaseTool):
    """Emit 50 MB as fast as can be; return how much the memory grew."""

    name = "Flood"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(FLOOD_BYTES // len(FLOOD_LINE)):
            context.emit(FLOOD_LINE)
            if number % 1000 == 0:
                context.progress(number)
                await asyncio.sleep(0)
        return ToolResult.ok(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


class FloodInProcess(Flood):
    """The same in a process."""

    name = "FloodInProcess"
    lane = "process"


class Hostile(BaseTool):
    """Emit what nobody should."""

    name = "Hostile"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        for text in HOSTILE:
            context.emit(text)
        numbers: list[Any] = [float("nan"), float("inf"), "three", None, 10**400, 4]
        for number in numbers:
            context.progress(number, number, "\0")
        return ToolResult.ok("done")


class HostileInProcess(Hostile):
    """The same in a process."""

    name = "HostileInProcess"
    lane = "process"


class TellFromFork(BaseTool):
    """Tell from a copy of the process, which nobody hears."""

    name = "TellFromFork"
    category = ToolCategory.OTHER
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        context.emit("before\n")
        pid = os.fork()
        if pid == 0:
            context.emit("from the fork\n")
            context.progress(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        context.emit("after\n")
        return ToolResult.ok(code)


class TellAndLeaveAThread(BaseTool):
    """Return, while a thread goes on telling."""

    name = "TellAndLeaveAThread"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        def go_on() -> None:
            for number in range(100):
                context.emit(f"{number} ")
                time.sleep(0.01)

        threading.Thread(target=go_on, daemon=True).start()
        await asyncio.sleep(0.1)
        return ToolResult.ok("returned")


@tool
async def tell_async(context: ExecutionContext, word: str) -> str:
    """Tell a word."""
    context.emit(word)
    return word


@tool
def tell_sync(context: ExecutionContext, word: str) -> str:
    """Tell a word."""
    context.emit(word)
    return word


def _tell_apart(context: ExecutionContext, pin: str) -> None:
    for part in (f"is {pin[:3]}", f"{pin[3:5]}\x1b[1", f"m{pin[5:]}", f" not {pin[:4]}"):
        context.emit(part)
        time.sleep(0.4)


@tool(sensitive=["pin"])
async def tell_apart_async(context: ExecutionContext, pin: str) -> str:
    """Tell a secret in parts, so slowly that they are written apart."""
    await asyncio.to_thread(_tell_apart, context, pin)
    return pin


@tool(sensitive=["pin"])
def tell_apart_sync(context: ExecutionContext, pin: str) -> str:
    """Tell a secret in parts, so slowly that they are written apart."""
    _tell_apart(context, pin)
    return pin


@tool(lane="async")
async def log_twice(context: ExecutionContext) -> str:
    """Log something for the curious, and a warning."""
    context.logger.info("for the curious")
    context.logger.warning("for all")
    return "logged"


TOOLS = (
    log_twice,
    Count,
    CountBlocking,
    CountInThreads,
    CountInThreadsOfProcess,
    TellAndStay,
    TellAndStayInProcess,
    Flood,
    FloodInProcess,
    Hostile,
    HostileInProcess,
    TellFromFork,
    TellAndLeaveAThread,
    tell_async,
    tell_sync,
    tell_apart_async,
    tell_apart_sync,
)
