"""Tools in this very process: no stack, no record."""

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from forge_tools.config import Settings
from forge_tools.errors import ErrorCode, ForgeError
from forge_tools.sandbox.configured import reach_of
from forge_tools.sandbox.reach import Artifacts
from forge_tools.signals import ENDINGS, handled, not_ignored
from forge_tools.time_limits import timed_out_after
from forge_tools.tool import load_engine, load_project, load_tools
from forge_tools.tool.base import BaseTool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""Added to the timeout: a body that awaits is cancelled before that, so one that still runs is blocking."""


class BlockedError(ForgeError):
    """A tool in this process blocked beyond its timeout; raised into its body."""

    code = ErrorCode.TIMEOUT


def local_tools(settings: Settings, references: Sequence[str]) -> list[BaseTool]:
    """Load built-ins, plugins and the user's tools: those of the project, and `references`."""
    own = load_project(settings, references)
    names = {tool.spec.name for tool in own}
    return [*(tool for tool in load_tools() if tool.spec.name not in names), *own]


def local_executor(tools: Sequence[BaseTool], settings: Settings, artifacts: Artifacts | None = None) -> ToolExecutor:
    """Return an executor over these tools, confined to the workspace as a worker is."""
    registry = ScopedRegistry()
    registry.register_many(tools)
    reach = reach_of(settings, artifacts=artifacts)
    return ToolExecutor(registry, max_timeout=settings.max_timeout, reach=reach, overrides=load_engine(settings))


def stoppable(work: Coroutine[Any, Any, T], timeout: float) -> T:
    """Run `work`, which may block the interpreter: Ctrl-C, SIGTERM, SIGHUP and the timeout interrupt it anyway."""

    async def main() -> T:
        # Replaces asyncio's handler, which waits for the loop's next turn: a blocking tool never yields one.
        with handled(not_ignored(*ENDINGS), signal.default_int_handler):
            return await work

    def overdue(_number: int, _frame: object) -> None:
        raise BlockedError(f"{timed_out_after(timeout)}; it blocked, and was interrupted")

    with handled([signal.SIGALRM], overdue):
        signal.setitimer(signal.ITIMER_REAL, timeout + GRACE_SECONDS)
        try:
            return asyncio.run(main())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
