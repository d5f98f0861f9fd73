"""Why a body failed: what was raised, where in its author's code, and what caused it; or that its process vanished."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

_LED = {"": "and:", "cause": "caused by:", "context": "while this was handled:", "member": "one of the group:"}

MOMENT = "%Y-%m-%d %H:%M:%S UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A line that was being run. `repeated` counts further identical frames before it, as recursion makes them.

    `own` distinguishes the author's code from libraries.
    """

    file: str
    line: int
    function: str
    code: str = ""
    own: bool = True
    repeated: int = 0

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """One exception, with its frames from the body inwards; `left_out` counts frames omitted from the middle.

    `how` is its relation to the one before it in a list: its `cause` (`raise ... from`), its `context` (raised while
    it was handled), or a `member` of a group.
    """

    type: str
    message: str = ""
    how: Literal["", "cause", "context", "member"] = ""
    notes: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    left_out: int = 0

    @property
    def frame(self) -> Frame | None:
        """The innermost line of the author's code; if there is none, of any code."""
        return next((frame for frame in reversed(self.frames) if frame.own), self.frames[-1] if self.frames else None)

    @property
    def said(self) -> str:
        """Type and message, as Python prints them."""
        return f"{self.type}: {self.message}" if self.message else self.type

    def lines(self) -> Iterator[str]:
        """Yield type and message, then the frames from the innermost outwards, each with its code."""
        yield self.said
        for note in self.notes:
            yield f"  note: {note}"
        for number, frame in enumerate(reversed(self.frames)):
            repeated = f" (and {frame.repeated:,} times more)" if frame.repeated else ""
            yield f"  {frame.place}{repeated}"
            if frame.code and (frame.own or not number):
                yield f"      {frame.code}"
        if self.left_out:
            yield f"  ... {self.left_out:,} frames left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Raised):
    """What a body raised; `causes` holds what led to it, nearest first, with the members of groups."""

    causes: tuple[Raised, ...] = ()

    @staticmethod
    def read(told: Any) -> "Diagnosis | None":
        """Read the result of `as_dict`; None for anything else."""
        try:
            return _reader().validate_python(told)
        except ValidationError:
            return None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"summary": self.summary, **asdict(self)}

    @property
    def place(self) -> str:
        """Where in the author's code it, or its cause, was raised; empty if no frame is known."""
        known = [frame for one in (self, *self.causes) if (frame := one.frame) is not None]
        frame = next((frame for frame in known if frame.own), known[0] if known else None)
        return "" if frame is None else frame.place

    @property
    def summary(self) -> str:
        """One line: what was raised, and where."""
        return f"{self.said} ({self.place})" if self.place else self.said

    def __str__(self) -> str:
        told = list(self.lines())
        for cause in self.causes:
            told += ["", _LED[cause.how], *cause.lines()]
        return "\n".join(told)


@cache
def _reader() -> TypeAdapter[Diagnosis]:
    return TypeAdapter(Diagnosis)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBody:
    """A body that started and whose end is unknown.

    `what` names the process and what ended it, such as `Process 7 on box ended`.
    """

    what: str
    started_at: datetime | None
    attempt: int
    max_attempts: int
    idempotent: bool

    @property
    def may_run_again(self) -> bool:
        return self.idempotent and self.attempt < self.max_attempts

    def __str__(self) -> str:
        started = f"started {moment(self.started_at)}, " if self.started_at else ""
        return (
            f"{self.what} while the tool ran ({started}attempt {self.attempt} of {self.max_attempts}). "
            f"Whether it took effect is unknown. {self._advice}"
        )

    @property
    def _advice(self) -> str:
        if self.may_run_again:
            return "The tool is idempotent, so it may be run again."
        if not self.idempotent:
            return "The tool is not idempotent, so it is not run again: check its effects before you submit it again."
        used = "Its only attempt is" if self.max_attempts == 1 else f"All {self.max_attempts} attempts are"
        return f"{used} used up: find out what ends the process before you submit it again."


def moment(at: datetime) -> str:
    """Format a time for use in a sentence."""
    return at.astimezone(UTC).strftime(MOMENT)
