"""The scope of a call: what is known while its body runs, besides its request, and what its body reports."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from types import NoneType
from typing import Any, Literal

from forge_tools.errors import InvalidCallError
from forge_tools.model.content import MAX_PARTS, Media

Stream = Literal["output", "stdout", "stderr", "log"]
"""Where output came from: `context.emit`, a standard stream, or a logger."""


class Reporter(ABC):
    """Takes the reports of a body, from any thread and without waiting; it never raises if nobody listens.

    It belongs to one call in one process: pickled or deeply copied, it becomes None.
    """

    __slots__ = ()

    @abstractmethod
    def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    @abstractmethod
    def emit(self, text: str | bytes, stream: Stream = "output", level: int | None = None) -> None:
        """Send part of a stream; a log takes whole messages, with their level as in `logging`."""

    def __reduce__(self) -> tuple[object, ...]:
        return NoneType, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a call is: `done` of `total`, if that is known, in the tool's own unit.

    `cursor` is where to continue after it; `at` is when the database received it, None in process.
    """

    done: float
    total: float | None = None
    message: str | None = None
    attempt: int = 1
    at: datetime | None = None
    cursor: str = ""

    @property
    def share(self) -> float | None:
        """The share that is done, from 0 to 1; None if the total is unknown."""
        return None if not self.total else min(1.0, max(0.0, self.done / self.total))


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A part of a call's output. `left_out` counts the bytes missing before `text`, dropped because the buffer was full.

    For a log message, `level` is as in `logging`.
    """

    text: str
    left_out: int = 0
    stream: Stream = "output"
    level: int | None = None
    attempt: int = 1
    at: datetime | None = None
    cursor: str = ""

    @property
    def source(self) -> str:
        """The stream; for a log message, the name of its level."""
        return self.stream if self.level is None else logging.getLevelName(self.level).lower()


Report = Progress | Output
"""What a body itself reports."""


@dataclass(frozen=True, slots=True)
class Told:
    """One report on its way to the database: the `number`-th of its attempt. Only progress has `done`.

    It is flat because it passes through sockets and into a row.
    """

    number: int
    done: float | None = None
    total: float | None = None
    text: str | None = None
    left_out: int = 0
    stream: Stream = "output"
    level: int | None = None


@dataclass(frozen=True, slots=True)
class NewReport:
    """A report of an attempt, stored only if its worker still owns that attempt."""

    execution_id: str
    attempt: int
    token: str
    told: Told


@dataclass(slots=True, eq=False)
class CallScope:
    """Belongs to one call in one process: pickled or deeply copied, it becomes None.

    Whoever starts a call creates it; the executor fills in the rest when the body begins. `deadline` is on the
    monotonic clock. `catch_up` runs before any output, if earlier output may still be on its way elsewhere.
    """

    reporter: Reporter | None = None
    _: KW_ONLY
    execution_id: str | None = None
    attempt: int = 1
    max_attempts: int = 1
    queue: str = ""
    catch_up: Callable[[], None] | None = None
    tool: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    deadline: float | None = None
    task: asyncio.Task[Any] | None = None
    is_over: bool = False
    attached: list[Media] | None = None
    opener: Callable[[Media, Any], Media] | None = None

    @property
    def remaining(self) -> float | None:
        """Seconds until the timeout, never below 0; None before the body begins."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the body any more: it was cancelled, timed out, or has ended."""
        task = self.task  # another thread may take it away
        is_asked = task is not None and task.cancelling() > 0
        return is_asked or self.is_over or self.remaining == 0.0

    def emit(self, text: str | bytes, stream: Stream = "output", level: int | None = None) -> None:
        """Send a part of the body's output."""
        if self.catch_up is not None:
            self.catch_up()
        if self.reporter is not None:
            self.reporter.emit(text, stream, level)

    def attach(self, part: Media, context: Any) -> None:
        """Add a part to the result. Its file is opened now, so later changes to the path do not matter.

        Raises:
            InvalidCallError: there are too many already.
        """
        if self.attached is None:
            self.attached = []
        if len(self.attached) >= MAX_PARTS:
            raise InvalidCallError(f"A result has {MAX_PARTS} parts at most; put more files into an archive")
        self.attached.append(part if self.opener is None else self.opener(part, context))

    def facts(self) -> dict[str, Any]:
        """Return what a log record says about the call."""
        names = ("execution_id", "attempt", "tool", "agent_id", "session_id")
        known = {name: getattr(self, name) for name in names}
        if self.execution_id is None:
            del known["attempt"]
        return {name: value for name, value in known.items() if value is not None}

    def __reduce__(self) -> tuple[object, ...]:
        return NoneType, ()


SCOPE: ContextVar[CallScope | None] = ContextVar("forge_tools_call", default=None)
"""The scope of the running call; contexts made for it hold it too, for threads without context variables."""


def scope_for(reporter: Reporter | None) -> CallScope:
    """Make the scope of the next call in this process. A call made by a body belongs to the execution of that body."""
    outer = SCOPE.get() or CallScope()
    return CallScope(
        reporter,
        execution_id=outer.execution_id,
        attempt=outer.attempt,
        max_attempts=outer.max_attempts,
        queue=outer.queue,
        catch_up=outer.catch_up,
    )
