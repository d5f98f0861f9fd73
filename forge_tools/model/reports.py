"""What a call tells while it runs: its tool reports progress and output, and whoever follows it hears of both."""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Stream = Literal["output", "stdout", "stderr", "log"]
"""Where a body put something out: `context.emit`, a standard stream, or a logger."""


class Reporter(ABC):
    """Takes what a body tells, from any thread, at once, and without ever raising for want of a listener.

    It belongs to one call in one process: pickled or copied deeply, what is left of it is None.
    """

    __slots__ = ()

    @abstractmethod
    def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    @abstractmethod
    def emit(self, text: str | bytes, stream: Stream = "output", level: int | None = None) -> None:
        """Put out a part of a stream; of the log whole messages, with their level as `logging` counts it."""

    def __reduce__(self) -> tuple[object, ...]:
        return _nobody, ()


def _nobody() -> None:
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
