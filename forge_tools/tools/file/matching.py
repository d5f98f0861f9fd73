"""Where a text stands in a file: exactly, or but for line ends, or, when asked, but for blanks; never by likeness."""

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.places import Check
from forge_tools.sandbox.paths.refusals import TOO_LARGE

WAYS = ("exact", "line-endings", "whitespace")
"""How a text can match, from the strictest on."""

_LINE_END = re.compile(r"\r?\n")
_BLANKS = " \t"
_CHECK_EVERY = 4096
_MAX_COMPARED = 500_000  # lines; each takes about a microsecond, and nothing can stop it meanwhile


@dataclass(frozen=True, slots=True)
class Match:
    """A span of the text, and the indentation by which it differs: `added` in the file, or `removed` there."""

    start: int
    end: int
    added: str = ""
    removed: str = ""


class Found:
    """All places of one text, from left to right: millions of them take little more than two numbers each."""

    def __init__(self, way: str) -> None:
        self.way = way
        self._starts = array("q")
        self._ends = array("q")
        self._shifts: list[tuple[str, str]] = []

    def add(self, start: int, end: int) -> None:
        self._starts.append(start)
        self._ends.append(end)

    def add_shifted(self, start: int, end: int, shift: tuple[str, str]) -> None:
        self.add(start, end)
        self._shifts.append(shift)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Match:
        return Match(self._starts[index], self._ends[index], *(self._shifts[index] if self._shifts else ()))

    def spans(self, indexes: range) -> Iterator[tuple[int, int]]:
        """Yield where they start and end."""
        chosen = slice(indexes.start, indexes.stop)
        return zip(self._starts[chosen], self._ends[chosen], strict=True)


class Exact(Found):
    """All places of exactly this text, which take nothing: they are found again whenever somebody asks."""

    def __init__(self, text: str, old: str) -> None:
        super().__init__("exact")
        self._text = text
        self._old = old
        self._count = text.count(old)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Match:
        start, end = next(self.spans(range(index, index + 1)))
        return Match(start, end)

    def spans(self, indexes: range) -> Iterator[tuple[int, int]]:
        return islice(self._all(), indexes.start, indexes.stop)

    def _all(self) -> Iterator[tuple[int, int]]:
        length, find = len(self._old), self._text.find
        at = find(self._old)
        while at >= 0:
            yield at, at + length
            at = find(self._old, at + length)


def find_matches(text: str, old: str, check: Check, *, with_blanks: bool) -> Found:
    """Find all places of `old`, none overlapping another.

    The first of `WAYS` that finds any counts; the last of them only where `with_blanks`. `check` is called meanwhile.
    """
    found: Found = Exact(text, old)
    check()
    if found:
        return found
    if "\n" in old:
        found = _but_for_line_ends(text, old, check)
        if found:
            return found
    return _but_for_blanks(text, old, check) if with_blanks else Found("whitespace")


def reindented(new: str, match: Match) -> str:
    """New text in the indentation of the place that it goes to."""
    if not (match.added or match.removed):
        return new
    lines = []
    for line in new.split("\n"):
        if not line.strip():
            lines.append(line)
        else:
            lines.append(match.added + line.removeprefix(match.removed))
    return "\n".join(lines)


def _but_for_line_ends(text: str, old: str, check: Check) -> Found:
    """Search where all line ends are the same, which is linear, and count back what that took away."""
    plain = text.replace("\r\n", "\n")
    wanted = old.replace("\r\n", "\n")
    removed = array("q", (at - index for index, (at, _) in enumerate(_all(text, "\r\n", check))))
    found = Found("line-endings")
    for at, end in _all(plain, wanted, check):
        found.add(at + bisect_left(removed, at), end + bisect_left(removed, end))
    return found


def _all(text: str, old: str, check: Check) -> Iterator[tuple[int, int]]:
    places = Exact(text, old)
    for number, span in enumerate(places.spans(range(len(places)))):
        if number % _CHECK_EVERY == 0:
            check()
        yield span


def _but_for_blanks(text: str, old: str, check: Check) -> Found:
    """Whole lines that are the same but for blanks at their ends and one indentation that all of them share."""
    wanted = [line.rstrip(_BLANKS) for line in _LINE_END.split(old)]
    ends_line = len(wanted) > 1 and not wanted[-1]
    wanted = wanted[:-1] if ends_line else wanted
    found = Found("whitespace")
    if not any(wanted):
        return found
    anchor = next(index for index, line in enumerate(wanted) if line)
    needle = wanted[anchor].strip(_BLANKS)
    lines = text.split("\n")
    starts = _starts(lines)
    index = compared = 0
    while index + len(wanted) <= len(lines):
        if index % _CHECK_EVERY == 0:
            check()
        compared += len(wanted) if needle in lines[index + anchor] else 0
        if compared > _MAX_COMPARED:
            raise SandboxError(
                "old_string is too much alike at too many places for match=whitespace. Pass less of it", TOO_LARGE
            )
        here = lines[index : index + len(wanted)]
        shift = _shift(wanted, here) if needle in here[anchor] else None
        if shift is None:
            index += 1
            continue
        last = index + len(wanted) - 1
        end = starts[last] + len(lines[last].removesuffix("\r"))
        if ends_line and last + 1 < len(lines):
            end = starts[last + 1]
        found.add_shifted(starts[index], end, shift)
        index += len(wanted)
    return found


def _starts(lines: list[str]) -> "array[int]":
    starts, position = array("q"), 0
    for line in lines:
        starts.append(position)
        position += len(line) + 1
    return starts


def _shift(wanted: list[str], here: list[str]) -> tuple[str, str] | None:
    """The indentation that each line of the file has more, or less; None where the lines differ in anything else."""
    shift: tuple[str, str] | None = None
    for line, other in zip(wanted, here, strict=True):
        found = other.removesuffix("\r").rstrip(_BLANKS)
        if not line and not found:
            continue
        one = _line_shift(line, found)
        if one is None or (shift is not None and one != shift):
            return None
        shift = one
    return shift


def _line_shift(line: str, found: str) -> tuple[str, str] | None:
    if found.endswith(line) and not found.removesuffix(line).strip(_BLANKS):
        return found.removesuffix(line), ""
    if line.endswith(found) and not line.removesuffix(found).strip(_BLANKS) and found:
        return "", line.removesuffix(found)
    return None
