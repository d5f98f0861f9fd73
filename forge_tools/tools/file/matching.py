"""Where a text stands in a file: exactly, or but for line ends, or, when asked, but for blanks; never by likeness."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from forge_tools.errors import SandboxError
from forge_tools.sandbox.refusals import TOO_LARGE

WAYS = ("exact", "line-endings", "whitespace")
"""How a text can match, from the strictest on."""

_LINE_END = re.compile(r"\r?\n")
_CRLF = re.compile(r"\r\n")
_BLANKS = " \t"
_MAX_COMPARED = 500_000  # lines; each takes about a microsecond, and nothing can stop it meanwhile


@dataclass(frozen=True, slots=True)
class Match:
    """A span of the text, and the indentation by which it differs: `added` in the file, or `removed` there."""

    start: int
    end: int
    added: str = ""
    removed: str = ""


def find_matches(text: str, old: str, *, with_blanks: bool) -> tuple[str, list[Match]]:
    """Find all places of `old` from left to right, none overlapping another; return the way and the places.

    The first of `WAYS` that finds any counts; the last of them only where `with_blanks`.
    """
    found = list(_exact(text, old))
    if found:
        return "exact", found
    if "\n" in old:
        found = list(_but_for_line_ends(text, old))
        if found:
            return "line-endings", found
    return "whitespace", list(_but_for_blanks(text, old)) if with_blanks else []


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


def _exact(text: str, old: str) -> Iterator[Match]:
    start = text.find(old)
    while start >= 0:
        yield Match(start, start + len(old))
        start = text.find(old, start + len(old))


def _but_for_line_ends(text: str, old: str) -> Iterator[Match]:
    """Search where all line ends are the same, which is linear, and count back what that took away."""
    plain = text.replace("\r\n", "\n")
    removed = [one.start() - index for index, one in enumerate(_CRLF.finditer(text))]
    for match in _exact(plain, old.replace("\r\n", "\n")):
        start, end = (at + bisect_left(removed, at) for at in (match.start, match.end))
        yield Match(start, end)


def _but_for_blanks(text: str, old: str) -> Iterator[Match]:
    """Whole lines that are the same but for blanks at their ends and one indentation that all of them share."""
    wanted = [line.rstrip(_BLANKS) for line in _LINE_END.split(old)]
    ends_line = len(wanted) > 1 and not wanted[-1]
    wanted = wanted[:-1] if ends_line else wanted
    if not any(wanted):
        return
    anchor = next(index for index, line in enumerate(wanted) if line)
    needle = wanted[anchor].strip(_BLANKS)
    lines = text.split("\n")
    starts = _starts(lines)
    index = compared = 0
    while index + len(wanted) <= len(lines):
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
        yield Match(starts[index], end, *shift)
        index += len(wanted)


def _starts(lines: list[str]) -> list[int]:
    starts, position = [], 0
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
