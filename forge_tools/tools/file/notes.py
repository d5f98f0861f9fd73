"""What a search says after its records: how many there are, how to see the rest, and what could not be looked into."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forge_tools.tools.file.hits import Page

_NOTE_ROOM = 320
_MAX_WARNING = 100
_MAX_WARNINGS = 20


def room_for_records(max_chars: int) -> int:
    """How much of an output is left for records once the notes have their part."""
    return max(1, max_chars - min(_NOTE_ROOM, max_chars // 2))


def counted(number: int, one: str, many: str) -> str:
    """`1 file`, `2,994 files`."""
    return f"{number:,} {one if number == 1 else many}"


@dataclass(slots=True, kw_only=True)
class Notes:
    """The end of an answer. `total` counts all records there are; None where nobody counted to the end.

    `in_all` says the same in other words than a number and the unit.
    """

    page: Page
    unit: tuple[str, str]
    total: int | None
    is_partial: bool
    in_all: str | None = None
    warnings: Sequence[str] = ()

    def facts(self) -> dict[str, Any]:
        """The same for programs."""
        facts: dict[str, Any] = {"shown_records": len(self.page.records), "truncated": self.page.has_more}
        if self.total is not None:
            facts["total_records"] = self.total
        if self.page.has_more:
            facts["next"] = self.page.next
        if self.is_partial:
            facts["partial"] = True
        if self.warnings:
            more = len(self.warnings) - _MAX_WARNINGS
            facts["warnings"] = [*self.warnings[:_MAX_WARNINGS], *([f"and {more:,} more"] if more > 0 else [])]
            facts["not_searched"] = len(self.warnings)
        return facts

    def lines(self) -> list[str]:
        page, notes = self.page, []
        known = "more" if self.total is None else counted(self.total, *self.unit)
        if page.has_more:
            first, last = page.seen - len(page.records) + 1, page.seen
            notes.append(f"[{first:,}-{last:,} of {self.in_all or known}; continue with offset={last}]")
        elif page.seen and not page.records:
            are = "is" if page.seen == 1 else "are"
            notes.append(f"[nothing after offset {page.offset}: there {are} {counted(page.seen, *self.unit)}]")
        if self.is_partial:
            notes.append("[stopped early: the time for this call was over; narrow path or pattern for the rest]")
        if self.warnings:
            more = f" and {len(self.warnings) - 1:,} more" if len(self.warnings) > 1 else ""
            notes.append(f"[not searched: {self.warnings[0][:_MAX_WARNING]}{more}]")
        return notes
