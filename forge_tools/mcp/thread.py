"""An event loop on its own thread: neither side blocks the other."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ToolResult, ToolSpec
from forge_tools.tool.executor import ToolExecutor

Answer = TypeVar("Answer")

END_PATIENCE = 5.0
"""Seconds that cancelled calls have to end what they started."""


class StoppedError(RuntimeError):
    """The thread accepts no more requests."""


class LoopThread:
    """A loop that runs from the first request until `stop`."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def submit(self, work: Coroutine[Any, Any, Answer]) -> "Future[Answer]":
        """Run `work` on that loop; cancelling the future cancels it.

        Raises:
            StoppedError: after `stop`.
        """
        with self._lock:
            if self._is_stopped:
                work.close()
                raise StoppedError
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run `work` on that loop and wait for it here; cancelling this cancels it.

        Raises:
            StoppedError: after `stop`.
        """
        return await asyncio.wrap_future(self.submit(work))

    def stop(self, seconds: float, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Accept no more requests, run `last`, cancel the rest, and end the thread; each step gets that many seconds."""
        with self._lock:
            is_running, self._is_stopped = self._loop is not None and not self._is_stopped, True
        if self._loop is None or not is_running:
            if last is not None:
                last.close()
            return
        if last is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(last, self._loop).result(seconds)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)

    def _serve(self) -> None:
        loop = self._loop
        assert loop is not None  # noqa: S101  for the type checker: the one who starts the thread has made it
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.get_loop().run_forever()


class ToolThread:
    """An executor whose calls share a loop separate from the caller's, from `with` to its end.

    At the end its calls are cancelled and awaited. A blocking tool delays the other calls, and is not awaited.
    """

    def __init__(self, executor: ToolExecutor) -> None:
        self._executor = executor
        self._thread = LoopThread("forge-tools")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.stop(END_PATIENCE)

    async def call(self, name: str, arguments: Mapping[str, Any], context: ExecutionContext, /) -> ToolResult:
        """Call a tool on that loop; cancelling this cancels the call."""
        return await self._thread.run(self._call(name, arguments, context))

    def specs(self) -> list[ToolSpec]:
        """Return the tools as data."""
        return self._executor.specs()

    async def _call(self, name: str, arguments: Mapping[str, Any], context: ExecutionContext) -> ToolResult:
        try:
            return await self._executor.call(name, arguments, context)
        except KeyboardInterrupt:  # raised by the tool itself: the real one goes to the main thread
            return ToolResult.fail("The tool raised KeyboardInterrupt", error_code=ErrorCode.EXECUTION_ERROR)
