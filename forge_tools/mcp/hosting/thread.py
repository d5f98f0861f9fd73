"""The thread on which connections to servers live, so that no tool that blocks keeps a server waiting, and no server a tool."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from forge_tools.mcp.hosting.connection import DisconnectedError

Answer = TypeVar("Answer")

_END_SECONDS = 30.0


class ConnectionThread:
    """An event loop of its own, from the first request until `stop`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._live, name="forge-tools-mcp", daemon=True)
        self._is_stopped = False

    def submit(self, work: Coroutine[Any, Any, Answer]) -> "Future[Answer]":
        """Run `work` over there; cancelling the future cancels it.

        Raises:
            DisconnectedError: the thread was stopped.
        """
        with self._lock:
            if self._is_stopped:
                work.close()
                raise DisconnectedError("MCP servers cannot be asked any more: this worker is stopping.")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run `work` over there and wait for it here; cancelling this cancels it.

        Raises:
            DisconnectedError: the thread was stopped.
        """
        return await asyncio.wrap_future(self.submit(work))

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Take no more requests, do this last, if the thread was ever needed, and end it."""
        with self._lock:
            is_first, self._is_stopped = not self._is_stopped, True
            loop = self._loop
        if loop is None or not is_first:
            last.close()
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(last, loop).result(_END_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(_END_SECONDS)

    def _live(self) -> None:
        loop = self._loop
        assert loop is not None  # noqa: S101  for the type checker: the one who starts the thread has made it
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            loop.close()
