"""The thread on which connections to servers live, so that no tool that blocks keeps a server waiting, and no server a tool."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from forge_tools.mcp.hosting.connection import Connection, DisconnectedError

Answer = TypeVar("Answer")

_END_SECONDS = 5.0


class ConnectionThread:
    """An event loop of its own, from the first request until the last of its connections is let go."""

    def __init__(self, connections: Iterable[Connection]) -> None:
        self._connections = set(connections)
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

    async def let_go(self, connection: Connection) -> None:
        """Close a connection, once."""
        if connection in self._connections:
            await self.run(connection.close())
            self._connections.discard(connection)
        if not self._connections:
            await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            loop = self._loop
        if loop is not None and self._thread.is_alive():
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
