"""Watches the tool loop from the engine's: finds the step that does not end, says where it is, raises into it."""

import asyncio
import ctypes
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import FrameType

from forge_tools.tool import base
from workers.lanes.base import Body
from workers.lanes.tool_loop import OWNER, ToolLoop

LOOK_SECONDS = 0.1
LATE_SECONDS = 0.5
"""A look that comes later than this was held up itself (a suspended process): what it sees proves nothing."""

_RUN = asyncio.Handle._run.__code__  # noqa: SLF001 the frame below every step
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))


class LoopHeldError(BaseException):
    """Raised into code that holds the tool loop; no Exception, so that a tool's `except Exception` lets it pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One stretch of code that the loop waits for: a task between two awaits, or a callback. Unknown owner: None."""

    handle: asyncio.Handle
    owner: Body | None
    turn: int


Seen = Callable[[Step, float], None]
"""Told at each look of a step that is still the same, and for how many seconds that has been so."""


class Watch:
    """Looks every `LOOK_SECONDS` on the running (the engine's) loop.

    A loop with much to do takes long turns too. Blamed is only a step that every look of a while found on the thread's stack
    within one turn, in which no task gets two steps.
    """

    def __init__(self, loop: ToolLoop, thread: threading.Thread, seen: Seen) -> None:
        self._loop = loop
        self._thread = thread
        self._seen = seen
        self._turn: int | None = None
        self._step: Step | None = None
        self._since = 0.0
        self._raised: Step | None = None
        self._engine = asyncio.get_running_loop()
        self._arm()

    def stop(self) -> None:
        self._timer.cancel()

    def interrupt(self, step: Step) -> bool:
        """Raise `LoopHeldError` in the loop's thread if it is still in that step; a C call gets it when it returns."""
        time.sleep(0)  # a fresh turn at the interpreter: for its 5 ms nobody comes between the look and the raise
        if self._running_handle() is not step.handle:
            return False
        self._raised = step
        return _raise_in(self._thread, LoopHeldError)

    def place(self, step: Step) -> str:
        """Where the step is: the innermost line of the tool's own, such as `_execute at tools.py:61`."""
        if self._running_handle() is not step.handle:
            return "a step that has ended"
        return _place(list(_stack(self._thread)))

    def _arm(self) -> None:
        self._due = time.monotonic() + LOOK_SECONDS
        self._timer = self._engine.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        is_late = now - self._due > LATE_SECONDS
        self._arm()
        turn, before = self._loop.turn, self._turn
        self._turn = turn
        step = self._find(turn) if turn is not None and turn == before else None
        if self._raised is not None and step is not self._raised:
            self._raised = None
            _raise_in(self._thread, None)  # it ended by itself; the exception is not for who comes next
        if step is None or is_late or step is not self._step:
            self._step, self._since = step, now
        else:
            self._seen(step, now - self._since)

    def _find(self, turn: int) -> Step | None:
        """The step the loop is in: the one of the last look, if it is the same."""
        handle = self._running_handle()
        if handle is None:
            return None
        if self._step is not None and self._step.handle is handle:
            return self._step
        context = getattr(handle, "_context", None)
        return Step(handle, context.get(OWNER) if context is not None else None, turn)

    def _running_handle(self) -> asyncio.Handle | None:
        """The loop's callback under way; a task's step is one too."""
        for frame in _stack(self._thread):
            if frame.f_code is _RUN:
                handle: asyncio.Handle = frame.f_locals["self"]
                return handle
        return None


def _stack(thread: threading.Thread) -> Iterator[FrameType]:
    """The thread's frames, innermost first."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 documented, and the only way
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frames: list[FrameType]) -> str:
    """The innermost frame of code that came neither with Python nor from a package index; else just the innermost."""
    inside = list(
        takewhile(lambda frame: frame.f_code is not _RUN and frame.f_code.co_filename != base.__file__, frames)
    )
    own = [frame for frame in inside if not frame.f_code.co_filename.startswith(_LIBRARIES)]
    frame = (own or inside or frames)[0]
    return f"{frame.f_code.co_name} at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _raise_in(thread: threading.Thread, error: type[BaseException] | None) -> bool:
    """Raise at the thread's next bytecode; None takes back what was not raised yet."""
    raised = ctypes.py_object(error) if error is not None else None
    return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), raised))
