"""An event loop on its own thread: neither side blocks the other."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from forge_tools.errors import ErrorCode
from forge_tools.model.calls import ExecutionContext, ToolResult
from forge_tools.model.tools import ToolSpec
from forge_tools.tool.executor import ToolExecutor

Answer = TypeVar("Answer")

END_PATIENCE = 5.0
"""Seconds that cancelled calls have to end what they started."""


class StoppedError(RuntimeError):
    """The thread accepts no more requests."""


class LoopThread:
    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._is_stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Answer]) -> "Future[Answer]":
        """Run `work` on that loop; cancelling the future cancels it.

        Raises:
            StoppedError: after `stop`.
        """
        with self._lock:
            if self._is_stopped:
                work.close()  # else Python warns that nobody awaited it
                raise StoppedError
            return asyncio.run_coroutine_threadsafe(work, self._loop)  # under the lock: after `stop` it would never end

    async def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return await asyncio.wrap_future(self.submit(work))

    def stop(self, seconds: float) -> None:
        """Accept no more requests, cancel the others, and end the thread, waiting at most that many seconds."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()  # the end of the runner cancels what still runs


class ToolThread(AbstractContextManager["ToolThread"]):
    """An executor whose calls share a loop separate from the caller's, from `with` to its end.

    At the end its calls are cancelled and awaited. A blocking tool delays the other calls, and is not awaited.
    """

    def __init__(self, executor: ToolExecutor) -> None:
        self._executor = executor
        self._thread = LoopThread("forge-tools")

    def __exit__(self, *_: object) -> None:
        self._thread.stop(END_PATIENCE)

    async def call(self, name: str, arguments: Mapping[str, Any], context: ExecutionContext, /) -> ToolResult:
        """Call a tool on that loop; cancelling this cancels the call."""

        async def there() -> ToolResult:
            try:
                return await self._executor.call(name, arguments, context)
            except KeyboardInterrupt:  # raised by the tool itself: the real one goes to the main thread
                return ToolResult.fail("The tool raised KeyboardInterrupt", error_code=ErrorCode.EXECUTION_ERROR)

        return await self._thread.run(there())

    def specs(self) -> list[ToolSpec]:
        return self._executor.specs()
