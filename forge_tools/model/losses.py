"""An attempt whose process vanished: what is known of it, as one sentence that every recorder of it uses."""

from dataclasses import dataclass
from datetime import UTC, datetime

MOMENT = "%Y-%m-%d %H:%M:%S UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A body that started and of which nobody can say how it ended.

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
    """A time as sentences have it."""
    return at.astimezone(UTC).strftime(MOMENT)
