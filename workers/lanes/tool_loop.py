"""The event loop that bodies of the async lane share, which knows each task's body, and the watch for what holds it."""

import asyncio
import ctypes
import logging
import selectors
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from forge_tools.tool import base
from forge_tools.tool.failures import frame_of
from workers.lanes.base import Body

CLOSE_SECONDS = 0.1
"""The pause between a forced cancel and closing what swallowed it."""

OWNER: ContextVar[Body | None] = ContextVar("forge_owner", default=None)
"""The body on whose behalf code runs; tasks and callbacks inherit it."""

POLL_SECONDS = 0.1
LATE_SECONDS = 0.5
"""A check that comes later than this was itself held up (a suspended process): what it sees proves nothing."""

_RUN = asyncio.Handle._run.__code__  # noqa: SLF001 the frame below every step
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))

logger = logging.getLogger(__name__)


class ToolLoop(asyncio.SelectorEventLoop):
    """A turn lasts from one check of the selector to the next: each task gets at most one step in it.

    Timers use a clock that leaves out excused turns, so that a body is not late because its neighbour held the loop.
    """

    def __init__(self) -> None:
        self._turns = _Turns()
        self._latest = 0.0
        super().__init__(self._turns)
        self._owners: weakref.WeakKeyDictionary[asyncio.Task[Any], Body] = weakref.WeakKeyDictionary()
        super().set_task_factory(self._owned)

    def set_task_factory(self, factory: object) -> NoReturn:
        """Refuse another factory: it could make the tasks of other bodies without their owners, or none at all."""
        raise RuntimeError('Tools share this event loop, so its task factory stays. Declare lane = "process".')

    @property
    def turn(self) -> int | None:
        """The number of the current turn; None while the loop waits. Any thread may ask."""
        return self._turns.number if self._turns.since is not None else None

    @property
    def turn_seconds(self) -> float:
        """How long the current turn has lasted."""
        since = self._turns.since
        return 0.0 if since is None else time.monotonic() - since

    def excuse(self, turn: int) -> None:
        """Leave that turn, if it is still the current one, out of the clock."""
        self._turns.excused = turn

    def time(self) -> float:
        turns = self._turns
        since = turns.since
        now = since if since is not None and turns.excused == turns.number else time.monotonic()
        self._latest = max(self._latest, now - turns.left_out)  # an excuse may come after a read of the clock
        return self._latest

    def context_of(self, body: Body) -> Context:
        """Return a separate context for `body`, so that whatever it starts is known to belong to it."""
        context = copy_context()
        context.run(OWNER.set, body)
        return context

    @property
    def has_tasks(self) -> bool:
        """Whether tasks of bodies are left, also of bodies that have ended. Any thread may ask."""
        return len(self._owners) > 0

    def tasks_of(self, body: Body) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks of `body`, including those that its tasks started."""
        return [task for task, owner in list(self._owners.items()) if owner is body and not task.done()]

    def _owned(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        context = options.get("context")
        # A context made by hand names no owner: the task still belongs to the body that creates it.
        owner = OWNER.get() if context is None else context.get(OWNER) or OWNER.get()
        if owner is not None:
            self._owners[task] = owner
        return task


class TaskCloser:
    """Ends what a body leaves on the tool loop: forgotten tasks, and those that swallow cancels. Use it on that loop.

    `survived` is called with a body that nothing could end.
    """

    def __init__(self, loop: ToolLoop, *, grace: float, survived: Callable[[Body], None]) -> None:
        self._loop = loop
        self._grace = grace
        self._survived = survived

    def politely(self, body: Body) -> None:
        """Cancel its tasks; force those that have not ended after the grace."""
        if self._cancel(body):
            self._loop.call_later(self._grace, self.by_force, body)

    def by_force(self, body: Body) -> None:
        """Cancel its tasks once more, then close their coroutines."""
        if self._cancel(body):
            # In its own context: its code runs while it is closed, and is to blame if it blocks.
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


class LoopHeldError(BaseException):
    """Raised into code that holds the tool loop; not an Exception, so that a tool's `except Exception` lets it pass."""


@dataclass(slots=True, eq=False)
class Step:
    """One stretch of code that the loop waits for: a task between two awaits, or a callback. Unknown owner: None.

    Checks have found it for `seconds`, the last time at `seen_at` (`time.monotonic`). `holding` leaves out what its
    thread spent waiting for a processor, which on a loaded machine makes short steps long.
    """

    handle: asyncio.Handle
    owner: Body | None
    turn: int
    seconds: float = 0.0
    holding: float = 0.0
    seen_at: float = 0.0

    @property
    def tool(self) -> str | None:
        return None if self.owner is None else self.owner.claim.tool


Seen = Callable[[Step], None]
"""Called at each check that finds the same step as before."""


class Watch:
    """Checks every `POLL_SECONDS` on the running (the engine's) loop, from a `begin` until nothing runs: an idle worker sleeps.

    A busy loop takes long turns too. A step is blamed only if every check for a while found it on the thread's stack
    within one turn, in which no task gets two steps.
    """

    def __init__(self, loop: ToolLoop, thread: threading.Thread, seen: Seen, *, is_busy: Callable[[], bool]) -> None:
        self._loop = loop
        self._thread = thread
        self._seen = seen
        self._is_busy = is_busy
        self._timer: asyncio.TimerHandle | None = None
        self._step: Step | None = None
        self._since = self._waited = self._waited_before = 0.0
        self._raised: Step | None = None
        self._engine = asyncio.get_running_loop()

    def begin(self) -> None:
        if self._timer is None:
            self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def interrupt(self, step: Step) -> bool:
        """Raise `LoopHeldError` in the loop's thread if it is still in that step; a C call gets it when it returns."""
        time.sleep(0)  # get a fresh 5 ms slice of the interpreter: nobody runs between the check and the raise
        if self._running_handle() is not step.handle:
            return False
        self._raised = step
        return _raise_in(self._thread, LoopHeldError)

    def place(self, step: Step) -> str:
        """Say where the step is: the innermost line of the tool's own code, such as `_execute at tools.py:61`."""
        if self._running_handle() is not step.handle:
            return "a step that has ended"
        return _place(list(_stack(self._thread)))

    def _arm(self) -> None:
        self._due = time.monotonic() + POLL_SECONDS
        self._timer = self._engine.call_later(POLL_SECONDS, self._check)

    def _check(self) -> None:
        now = time.monotonic()
        is_late = now - self._due > LATE_SECONDS
        turn = self._loop.turn
        step = self._find(turn) if turn is not None else None
        self._timer = None
        if step is not None or self._is_busy():
            self._arm()
        if self._raised is not None and step is not self._raised:
            self._raised = None
            _raise_in(self._thread, None)  # it ended by itself; the exception must not hit the next step
        if step is not None:
            self._read_waited()
        if step is None or is_late or step is not self._step:
            self._step, self._since, self._waited_before = step, now, self._waited
        else:
            step.seconds, step.seen_at = now - self._since, now
            step.holding = step.seconds - (self._waited - self._waited_before)
            self._seen(step)

    def _find(self, turn: int) -> Step | None:
        """Return the step that the loop is in: that of the last check, if it is the same."""
        handle = self._running_handle()
        if handle is None:
            return None
        if self._step is not None and self._step.handle is handle and self._step.turn == turn:
            return self._step
        context = getattr(handle, "_context", None)
        return Step(handle, context.get(OWNER) if context is not None else None, turn)

    def _read_waited(self) -> None:
        with suppress(OSError):  # this kernel has no such file, or no descriptor is left: the last reading must do
            known = Path(f"/proc/self/task/{self._thread.native_id}/schedstat").read_text()
            self._waited = int(known.split()[1]) / 1e9

    def _running_handle(self) -> asyncio.Handle | None:
        """Return the loop's current callback; a task's step is one too."""
        for frame in _stack(self._thread):
            if frame.f_code is _RUN:
                handle: asyncio.Handle = frame.f_locals["self"]
                return handle
        return None


class _Turns(selectors.DefaultSelector):
    """Selects as usual, and records when the loop waits and resumes."""

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


def _close(task: asyncio.Task[object]) -> None:
    """Throw GeneratorExit into its coroutine, which then takes no more steps unless it swallows that too."""
    coroutine = task.get_coro()
    task.add_done_callback(_forget)
    with suppress(BaseException):  # whatever the tool's own code raises on its way out
        if coroutine is not None:
            coroutine.close()
    task.cancel()  # its next step finds the coroutine closed, which ends the task


def _forget(task: asyncio.Task[object]) -> None:
    """Retrieve how it ended, or asyncio would log that nobody did."""
    if not task.cancelled():
        task.exception()


def _stack(thread: threading.Thread) -> Iterator[FrameType]:
    """Yield the thread's frames, innermost first."""
    frame = frame_of(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frames: list[FrameType]) -> str:
    """Return the innermost frame of code that is neither Python's nor from a package index; else just the innermost."""
    inside = list(
        takewhile(lambda frame: frame.f_code is not _RUN and frame.f_code.co_filename != base.__file__, frames)
    )
    own = [frame for frame in inside if not frame.f_code.co_filename.startswith(_LIBRARIES)]
    frame = (own or inside or frames)[0]
    return f"{frame.f_code.co_name} at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _raise_in(thread: threading.Thread, error: type[BaseException] | None) -> bool:
    """Raise at the thread's next bytecode; None withdraws what was not raised yet."""
    raised = ctypes.py_object(error) if error is not None else None
    return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), raised))
