"""Ends what a body leaves on the tool loop: tasks it forgot, and those that swallow cancellation."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from workers.lanes.base import Body
from workers.lanes.tool_loop import ToolLoop

CLOSE_SECONDS = 0.1
"""Between a forced cancel and closing what swallowed it."""

logger = logging.getLogger(__name__)


class Closing:
    """Works on the tool loop. `survived` is told of a body that nothing could end."""

    def __init__(self, loop: ToolLoop, *, grace: float, survived: Callable[[Body], None]) -> None:
        self._loop = loop
        self._grace = grace
        self._survived = survived

    def politely(self, body: Body) -> None:
        """Cancel its tasks; those that have not ended after the grace are forced to."""
        if self._cancel(body):
            self._loop.call_later(self._grace, self.by_force, body)

    def by_force(self, body: Body) -> None:
        """Cancel its tasks once more, then close their coroutines."""
        if self._cancel(body):
            self._loop.call_later(CLOSE_SECONDS, self._close, body, context=self._loop.context_of(body))

    def _cancel(self, body: Body) -> int:
        left = self._loop.tasks_of(body)
        for task in left:
            task.cancel()
        return len(left)

    def _close(self, body: Body) -> None:
        left = self._loop.tasks_of(body)
        for task in left:
            _close(task)
        if left:
            self._loop.call_later(CLOSE_SECONDS, self._look_for_survivors, body)

    def _look_for_survivors(self, body: Body) -> None:
        if self._loop.tasks_of(body):
            logger.critical("A tool swallows cancellation and cannot be closed", extra={"tool": body.claim.tool})
            self._survived(body)


def _close(task: asyncio.Task[object]) -> None:
    """Throw GeneratorExit into its coroutine, which cannot take a step any more unless it swallows that too."""
    coroutine = task.get_coro()
    task.add_done_callback(_forget)
    with suppress(BaseException):  # whatever the tool's own code raises on its way out
        if coroutine is not None:
            coroutine.close()
    task.cancel()  # its next step finds the coroutine closed, which ends the task


def _forget(task: asyncio.Task[object]) -> None:
    """Ask for how it ended, or asyncio would log that nobody did."""
    if not task.cancelled():
        task.exception()
