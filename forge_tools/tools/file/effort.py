"""Blocking work on a thread of its own, which is told when nobody waits for it any more, and waited for."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.records import ExecutionContext
from forge_tools.tools.deadline import Deadline

Answer = TypeVar("Answer")


class Effort:
    """The work of one call. A cancelled call ends when its thread has ended, so that nothing happens after it is over."""

    def __init__(self, context: ExecutionContext) -> None:
        self._deadline = Deadline(context)
        self._is_cancelled = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether it is time to answer with what there is."""
        return self._is_cancelled.is_set() or self._deadline.is_over

    def check(self) -> None:
        """Stop the work between two steps of it.

        Raises:
            SandboxError: the time for the call is over, or the call was cancelled.
        """
        if self.is_over:
            raise SandboxError("The time for this call was over before it was done. Give it more", ErrorCode.TIMEOUT)

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """Do the work on a thread and return what it returns."""
        task = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._is_cancelled.set()
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # asked for, or asyncio would log what nobody wants to know
            raise
        finally:
            del task  # or its error and this frame hold each other, and with them the workspace, until it is collected
