"""Tools of this process on a thread of their own, so that one which blocks keeps no client from being answered."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from forge_tools.errors import ErrorCode
from forge_tools.executor import ToolExecutor
from forge_tools.records import ExecutionContext, ToolResult, ToolSpec

END_PATIENCE = 5.0
"""Seconds that cancelled calls have to end what they started."""


class ToolThread:
    """An executor whose calls share one event loop apart from the caller's, from `with` to its end.

    At the end its calls are cancelled and waited for. A tool that blocks delays the other calls, and is not waited for.
    """

    def __init__(self, executor: ToolExecutor) -> None:
        self._executor = executor
        self._begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="forge-tools", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        loop, end = self._begun.result()
        loop.call_soon_threadsafe(end.set)
        self._thread.join(END_PATIENCE)

    async def call(self, name: str, arguments: Mapping[str, Any], context: ExecutionContext, /) -> ToolResult:
        """Call a tool over there; cancelling this cancels the call."""
        loop, _ = self._begun.result()
        calling = asyncio.run_coroutine_threadsafe(self._call(name, arguments, context), loop)
        return await asyncio.wrap_future(calling)

    def specs(self) -> list[ToolSpec]:
        """The tools as data."""
        return self._executor.specs()

    async def _call(self, name: str, arguments: Mapping[str, Any], context: ExecutionContext) -> ToolResult:
        try:
            return await self._executor.call(name, arguments, context)
        except KeyboardInterrupt:  # nobody's but the tool's own: the real one comes to the main thread
            return ToolResult.fail("The tool raised KeyboardInterrupt", error_code=ErrorCode.EXECUTION_ERROR)

    async def _live(self) -> None:
        end = asyncio.Event()
        self._begun.set_result((asyncio.get_running_loop(), end))
        await end.wait()  # then `asyncio.run` cancels what is left, and waits for it
