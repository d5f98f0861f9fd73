"""The scope of a call: what is known of it while its body runs, beside what its caller sent, and what its body reports."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, Literal

from forge_tools.errors import InvalidCallError
from forge_tools.model.content import MAX_PARTS, Media

Stream = Literal["output", "stdout", "stderr", "log"]
"""Where a body put something out: `context.emit`, a standard stream, or a logger."""


class Reporter(ABC):
    """Takes the reports of a body, from any thread and without waiting; it never raises for want of a listener.

    It belongs to one call in one process: pickled or copied deeply, what is left of it is None.
    """

    __slots__ = ()

    @abstractmethod
    def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    @abstractmethod
    def emit(self, text: str | bytes, stream: Stream = "output", level: int | None = None) -> None:
        """Put out a part of a stream; of the log whole messages, with their level as `logging` counts it."""

    def __reduce__(self) -> tuple[object, ...]:
        return _nothing, ()


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a call is: `done` of `total`, where that is known, in whatever the tool counts.

    `cursor` is where to go on listening after it; `at` is when the database heard of it, None in process.
    """

    done: float
    total: float | None = None
    message: str | None = None
    attempt: int = 1
    at: datetime | None = None
    cursor: str = ""

    @property
    def share(self) -> float | None:
        """The part that is done, from 0 to 1; None where the total is not known."""
        return None if not self.total else min(1.0, max(0.0, self.done / self.total))


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a call put out. So many bytes before `text` are missing: `left_out`; there was more than is kept.

    `level` is that of what was logged, as `logging` counts it.
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
        """The stream, or of the log the name of the level."""
        return self.stream if self.level is None else logging.getLevelName(self.level).lower()


Report = Progress | Output
"""What a body itself tells."""


@dataclass(frozen=True, slots=True)
class Told:
    """One report on its way to the database: the `number`-th of its attempt. Progress has `done`, output has not.

    It is flat, since it goes through sockets and into a row.
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
    """A report of an attempt, to be stored if that attempt is still its worker's."""

    execution_id: str
    attempt: int
    token: str
    told: Told


@dataclass(slots=True, eq=False)
class CallScope:
    """Belongs to one call in one process: pickled or copied deeply, what is left of it is None.

    Whoever starts a call makes it; the executor fills in what it knows when the body begins. `deadline` is on the monotonic
    clock. `catch_up` is done before anything is put out, where what was put out earlier may still be on another way.
    """

    reporter: Reporter | None = None
    _: KW_ONLY
    execution_id: str | None = None
    attempt: int = 1
    max_attempts: int = 1
    catch_up: Callable[[], None] | None = None
    tool: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    deadline: float | None = None
    task: asyncio.Task[Any] | None = None
    is_over: bool = False
    attached: list[Media] | None = None
    opener: Callable[[Media, Any], Media] | None = None

    def begin(self, seconds: float) -> None:
        """The body begins now, in this task, with so many seconds until its timeout."""
        self.deadline = time.monotonic() + seconds
        self.task = asyncio.current_task()

    @property
    def has_begun(self) -> bool:
        return self.tool is not None

    @property
    def remaining(self) -> float | None:
        """Seconds until its timeout, 0 at least; None before its body begins."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the body any more: it was cancelled, its time is up, or it has ended."""
        is_asked = self.task is not None and self.task.cancelling() > 0
        return is_asked or self.is_over or self.remaining == 0.0

    def emit(self, text: str | bytes, stream: Stream = "output", level: int | None = None) -> None:
        """Put out a part of the output of the body."""
        if self.catch_up is not None:
            self.catch_up()
        if self.reporter is not None:
            self.reporter.emit(text, stream, level)

    def attach(self, part: Media, context: Any) -> None:
        """Add a part to the result. Its file is opened now, so later changes of the path do not matter.

        Raises:
            InvalidCallError: there are too many already.
        """
        if self.attached is None:
            self.attached = []
        if len(self.attached) >= MAX_PARTS:
            raise InvalidCallError(f"A result has {MAX_PARTS} parts at most; put further files into an archive")
        self.attached.append(part if self.opener is None else self.opener(part, context))

    def facts(self) -> dict[str, Any]:
        """What a record of a log says of the call."""
        names = ("execution_id", "attempt", "tool", "agent_id", "session_id")
        known = {name: getattr(self, name) for name in names}
        if self.execution_id is None:
            del known["attempt"]
        return {name: value for name, value in known.items() if value is not None}

    def __reduce__(self) -> tuple[object, ...]:
        return _nothing, ()


SCOPE: ContextVar[CallScope | None] = ContextVar("forge_tools_call", default=None)
"""Of the call being run; contexts that were made for it have it too, for threads that know no context variables."""


def scope_for(reporter: Reporter | None) -> CallScope:
    """Make the scope of the next call in this process. A call made by a body belongs to the execution of that body."""
    outer = SCOPE.get() or CallScope()
    return CallScope(
        reporter,
        execution_id=outer.execution_id,
        attempt=outer.attempt,
        max_attempts=outer.max_attempts,
        catch_up=outer.catch_up,
    )
