"""Tools that need descriptors, and one that changes what its process may do."""

import asyncio
import ctypes
import os
import resource
import signal
import sys
import time
from contextlib import suppress

from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult

HELD: list[int] = []


class Open(BaseTool):
    """Open a descriptor for a moment."""

    name = "Open"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True)
    lane = "async"
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        with open(os.devnull):
            await asyncio.sleep(0.05)
        return ToolResult.ok("opened")


class Eat(BaseTool):
    """Take every descriptor for a while, those too that come free."""

    name = "Eat"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (ToolParameter(name="seconds", type="number", description="How long."),)

    async def _execute(self, context: ExecutionContext, seconds: float) -> ToolResult:
        taken: list[int] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(OSError):
                while time.monotonic() < deadline:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            await asyncio.sleep(0.001)
        for fd in taken:
            os.close(fd)
        return ToolResult.ok(len(taken))


class Poison(BaseTool):
    """Change this process, or tell what it may do and who it is."""

    name = "Poison"
    category = ToolCategory.EXECUTION
    parameters = (ToolParameter(name="how", type="string", description="What to change, if anything."),)

    async def _execute(self, context: ExecutionContext, how: str) -> ToolResult:
        ways = {
            "lower": lambda: _lower(resource.RLIMIT_NOFILE, 16),
            "lower both": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
            "raise": lambda: resource.setrlimit(resource.RLIMIT_DATA, (-1, -1)),
            "ignore": lambda: ctypes.CDLL(None).signal(signal.SIGCHLD, ctypes.c_void_p(1)),
            "block": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]),
            "leak": _leak,
            "close": lambda: os.close(1),
            "close stdin": sys.stdin.close,
            "redirect": lambda: os.dup2(0, 2),
        }
        before = os.getpid()
        ways.get(how, lambda: None)()
        return ToolResult.ok(before)


def _lower(number: int, soft: int) -> None:
    resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))


def _leak() -> None:
    """Hold all descriptors but a few."""
    _lower(resource.RLIMIT_NOFILE, most := 256)
    while (number := os.open(os.devnull, os.O_RDONLY)) < most - 10:  # no deadline: it ends where descriptors do
        HELD.append(number)


TOOLS = (Open, Poison, Eat)
