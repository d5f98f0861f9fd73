"""The event loop that bodies of the async lane share: it knows its turns, whose task is whose, and what time counts."""

import asyncio
import logging
import selectors
import time
import weakref
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from workers.lanes.base import Body

CLOSE_SECONDS = 0.1
"""Between a forced cancel and closing what swallowed it."""

T = TypeVar("T")

logger = logging.getLogger(__name__)

OWNER: ContextVar[Body | None] = ContextVar("forge_owner", default=None)
"""The body on whose behalf code runs; tasks and callbacks inherit it."""


class ToolLoop(asyncio.SelectorEventLoop):
    """A turn lasts from one look at the selector to the next: each task gets one step in it at most.

    Timers count on a clock that leaves out excused turns, so that a body whose neighbour held the loop is not late for that.
    """

    def __init__(self) -> None:
        self._turns = _Turns()
        self._latest = 0.0
        super().__init__(self._turns)
        self._owners: weakref.WeakKeyDictionary[asyncio.Task[Any], Body] = weakref.WeakKeyDictionary()
        self.set_task_factory(self._owned)

    @property
    def turn(self) -> int | None:
        """The number of the turn under way; None while the loop waits. Any thread may ask."""
        return self._turns.number if self._turns.since is not None else None

    @property
    def turn_seconds(self) -> float:
        """How long the turn under way has lasted."""
        since = self._turns.since
        return 0.0 if since is None else time.monotonic() - since

    def excuse(self, turn: int) -> None:
        """Leave that turn, if it is still under way, out of the clock."""
        self._turns.excused = turn

    def time(self) -> float:
        turns = self._turns
        since = turns.since
        now = since if since is not None and turns.excused == turns.number else time.monotonic()
        self._latest = max(self._latest, now - turns.left_out)  # an excuse may come after a look at the clock
        return self._latest

    def context_of(self, body: Body) -> Context:
        """A context of its own for `body`, in which whatever it starts is known to be its."""
        context = copy_context()
        context.run(OWNER.set, body)
        return context

    def tasks_of(self, body: Body) -> list[asyncio.Task[Any]]:
        """The tasks of `body` that are not done, those that its tasks started included."""
        return [task for task, owner in list(self._owners.items()) if owner is body and not task.done()]

    def _owned(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **options: Any,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        context = options.get("context")
        owner = OWNER.get() if context is None else context.get(OWNER) or OWNER.get()
        if owner is not None:
            self._owners[task] = owner
        return task


class _Turns(selectors.DefaultSelector):
    """Selects as ever, and notes when the loop comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.since: float | None = None
        self.excused = -1
        self.left_out = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if self.since is not None and self.excused == self.number:
            self.left_out += time.monotonic() - self.since
        self.since = None
        try:
            return super().select(timeout)
        finally:
            self.number += 1
            self.since = time.monotonic()


class TaskCloser:
    """Ends what a body leaves on the tool loop, where it works: tasks it forgot, and those that swallow cancellation.

    `survived` is told of a body that nothing could end.
    """

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
            logger.critical("A tool swallows cancellation and cannot be closed", extra=body.claim.facts())
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
