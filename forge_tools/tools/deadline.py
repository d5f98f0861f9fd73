"""How long a body may take, so that it answers with what it has before its call is timed out."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from forge_tools.errors import ErrorCode, SandboxError

Answer = TypeVar("Answer")


class Deadline:
    """The moment by which a body should be done: 10 % of its timeout, at most 2 s, before the call is over or cancelled."""

    def __init__(self, timeout: float, is_cancelled: threading.Event | None = None) -> None:
        self.margin = min(2.0, timeout / 10)
        self._at = time.monotonic() + timeout - self.margin
        self._is_cancelled = is_cancelled or threading.Event()

    @property
    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._at - time.monotonic())

    @property
    def until_the_end(self) -> float:
        """Seconds until the call is ended from outside, never below zero."""
        return max(0.0, self._at + self.margin - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether it is time to answer with what there is."""
        return self._is_cancelled.is_set() or time.monotonic() >= self._at

    def within(self, timeout: float) -> "Deadline":
        """The deadline of a part of the work."""
        return Deadline(timeout, self._is_cancelled)

    def cancel(self) -> None:
        """Tell work on a thread that nobody waits for it any more."""
        self._is_cancelled.set()

    def check(self) -> None:
        """Stop the work between two steps of it.

        Raises:
            SandboxError: the time for the call is over, or the call was cancelled.
        """
        if self.is_over:
            raise SandboxError("The call did not finish within its timeout. Give it a longer one", ErrorCode.TIMEOUT)

    async def look(self, work: Callable[[], Answer]) -> Answer:
        """Do work that changes nothing on a thread; a cancelled call ends at once, and the thread soon after."""
        try:
            return await asyncio.to_thread(work)
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """Do work on a thread; a cancelled call ends when its thread has ended, so that nothing happens after it is over."""
        task = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.cancel()
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # asked for, or asyncio would log what nobody wants to know
            raise
        finally:
            del task  # or its error and this frame hold each other, and with them the workspace, until it is collected
