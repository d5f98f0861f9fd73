"""Where a text occurs in a file: exactly, except for line ends, or, on request, except for blanks; else, why not."""

import difflib
import re
import time
import unicodedata
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.places import Check
from forge_tools.sandbox.paths.refusals import TOO_LARGE
from forge_tools.tools.file.text import visible

WAYS = ("exact", "line-endings", "whitespace")
"""How a text can match, the strictest first."""

_LINE_END = re.compile(r"\r?\n")
_BLANKS = " \t"
_CHECK_EVERY = 4096
_MAX_COMPARED = 500_000  # lines; each takes about a microsecond, and it cannot be interrupted
_SECONDS = 0.05
_MAX_LINES = 200_000
_MAX_CANDIDATES = 200
_LEAST_ALIKE = 0.6
_SHOWN = 60
_COMPARED = 800  # characters; the comparison is quadratic at best, and cannot be interrupted
_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014", "''\"\"--")


class Match(NamedTuple):
    """A span of the text, and the indentation by which it differs: `added` in the file, or `removed` there."""

    start: int
    end: int
    added: str = ""
    removed: str = ""


class Found:
    """All places of one text, from left to right. There may be millions: none is stored, each is found again."""

    def __init__(self, way: str, find: Callable[[], Iterator[Match]], count: int | None = None) -> None:
        self.way = way
        self._find = find
        self._count = sum(1 for _ in find()) if count is None else count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Match]:
        return self._find()


def find_matches(text: str, old: str, check: Check, *, with_blanks: bool) -> Found:
    """Find all places of `old`, without overlaps, by the first of `WAYS` that finds any; the last only if `with_blanks`."""
    exact, line_endings, whitespace = WAYS
    found = Found(exact, lambda: _places(text, old, check), text.count(old))
    check()
    if not found and "\n" in old:
        found = Found(line_endings, lambda: _but_for_line_ends(text, old, check))
    if not found and with_blanks:
        found = Found(whitespace, lambda: _but_for_blanks(text, old, check))
    return found


def reindented(new: str, match: Match) -> str:
    """Return new text in the indentation of its place."""
    if not (match.added or match.removed):
        return new
    lines = new.split("\n")
    return "\n".join(match.added + line.removeprefix(match.removed) if line.strip() else line for line in lines)


def nearest(text: str, old: str) -> str | None:
    """Say which lines most resemble `old`, and how they differ; None if there are none, or the search would take long."""
    lines, wanted = _lines(text), _lines(old)
    if wanted and not wanted[-1]:
        wanted.pop()
    if not wanted or len(lines) > _MAX_LINES:
        return None
    deadline, best = time.monotonic() + _SECONDS, (0.0, 0)
    for start in _candidates(lines, wanted):
        if time.monotonic() > deadline:
            break
        best = max(best, (_alike(wanted, lines[start : start + len(wanted)]), -start))
    alike, start = best[0], -best[1]
    if alike < _LEAST_ALIKE:
        return None
    found, first = lines[start : start + len(wanted)], start + 1
    where = f"line {first:,} is" if len(found) == 1 else f"lines {first:,}-{start + len(found):,} are"
    return f"{where} {alike:.0%} alike; {_why(wanted, found, first)}"


def _places(text: str, old: str, check: Check) -> Iterator[Match]:
    number, at = 0, text.find(old)
    while at >= 0:
        if number % _CHECK_EVERY == 0:
            check()
        yield Match(at, at + len(old))
        number, at = number + 1, text.find(old, at + len(old))


def _but_for_line_ends(text: str, old: str, check: Check) -> Iterator[Match]:
    """Search with all line ends made equal, which is linear, and map the places back."""
    plain, wanted = text.replace("\r\n", "\n"), old.replace("\r\n", "\n")
    removed = array("q", (place.start - index for index, place in enumerate(_places(text, "\r\n", check))))
    for at, end, *_ in _places(plain, wanted, check):
        yield Match(at + bisect_left(removed, at), end + bisect_left(removed, end))


def _but_for_blanks(text: str, old: str, check: Check) -> Iterator[Match]:
    """Find whole lines that are equal except for blanks at their ends and one indentation that all of them share."""
    wanted = [line.rstrip(_BLANKS) for line in _LINE_END.split(old)]
    ends_line = len(wanted) > 1 and not wanted[-1]
    wanted = wanted[:-1] if ends_line else wanted
    if not any(wanted):
        return
    anchor = next(index for index, line in enumerate(wanted) if line)
    needle, size = wanted[anchor].strip(_BLANKS), len(wanted)
    lines = text.split("\n")
    index = compared = start = 0  # where line `index` begins in the text
    while index + size <= len(lines):
        if index % _CHECK_EVERY == 0:
            check()
        shift, here = None, lines[index : index + size]
        if needle in here[anchor]:
            compared += size
            if compared > _MAX_COMPARED:
                what = "old_string resembles too many places for match=whitespace. Pass less of it"
                raise SandboxError(what, TOO_LARGE)
            shift = _shift(wanted, here)
        taken = here if shift else here[:1]
        after = start + sum(map(len, taken)) + len(taken)
        if shift:
            ends = ends_line and index + size < len(lines)
            yield Match(start, after if ends else after - 1 - here[-1].endswith("\r"), *shift)
        start, index = after, index + len(taken)


def _shift(wanted: list[str], here: list[str]) -> tuple[str, str] | None:
    """Return the indentation that every line of the file has more, or less; None if the lines differ otherwise."""
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


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")


def _candidates(lines: list[str], wanted: list[str]) -> list[int]:
    """Return where the text could start, judged by common lines, else by common words, rare ones first."""
    places = defaultdict(list)
    for number, line in enumerate(lines):
        places[_plain(line)].append(number)
    starts: dict[int, None] = {}
    shared = sorted((len(places[key]), index) for index, key in enumerate(map(_plain, wanted)) if key and key in places)
    for _, index in shared:
        starts |= dict.fromkeys(number - index for number in places[_plain(wanted[index])][:_MAX_CANDIDATES])
    if not starts:
        words = {(word, index) for index, line in enumerate(wanted) for word in line.split()}
        for word, index in sorted(words, key=lambda one: -len(one[0]))[:8]:
            starts |= dict.fromkeys([n - index for n, line in enumerate(lines) if word in line][:_MAX_CANDIDATES])
    return [start for start in starts if 0 <= start < len(lines)][:_MAX_CANDIDATES]


def _plain(line: str) -> str:
    """Reduce a line to what remains without case, blanks and the forms of its characters."""
    return " ".join(unicodedata.normalize("NFKC", line).translate(_QUOTES).casefold().split())


def _alike(wanted: list[str], found: list[str]) -> float:
    one, other = "\n".join(wanted)[:_COMPARED], "\n".join(found)[:_COMPARED]
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= _LEAST_ALIKE else 0.0


def _why(wanted: list[str], found: list[str], first: int) -> str:
    for offset, line in enumerate(wanted):
        if offset >= len(found):
            return f"the file ends before line {offset + 1} of old_string"
        other = found[offset]
        is_part = (offset == 0 and other.endswith(line)) or (offset == len(wanted) - 1 and other.startswith(line))
        if line != other and not is_part:
            return f"line {first + offset} {_difference(line, other)}"
    return "the lines are the same, but not where they begin or end"


def _difference(line: str, other: str) -> str:
    if line.rstrip() == other.rstrip():
        return f"ends with {_blanks(other[len(other.rstrip()) :])} where old_string has {_blanks(line[len(line.rstrip()) :])}"
    if line.strip() == other.strip():
        mine, its = (text[: len(text) - len(text.lstrip())] for text in (line, other))
        return f"starts with {_blanks(its)} where old_string has {_blanks(mine)}"
    if unicodedata.normalize("NFC", line) == unicodedata.normalize("NFC", other):
        return "has the same letters in another Unicode form (composed or decomposed)"
    if line.casefold() == other.casefold():
        return f"differs in upper and lower case: {_shown(other)}"
    return _first_difference(line, other)


def _first_difference(line: str, other: str) -> str:
    """Compare the contents of the lines, from their first letters on."""
    indent = len(other) - len(other.lstrip())
    line, other = line.strip(), other.strip()
    pairs = enumerate(zip(line, other, strict=False))
    at = next((index for index, (one, two) in pairs if one != two), min(len(line), len(other)))
    mine, its = line[at : at + 1], other[at : at + 1]
    if mine and its and (_is_odd(mine) or _is_odd(its)):
        return f"has {_sign(its)} at column {indent + at + 1} where old_string has {_sign(mine)}"
    start = max(0, at - 20)
    return f"has {_shown(other[start:])} where old_string has {_shown(line[start:])}"


def _blanks(text: str) -> str:
    if not text:
        return "nothing"
    kinds = {" ": "space", "\t": "tab"}
    if len(set(text)) == 1 and text[0] in kinds:
        number, kind = len(text), kinds[text[0]]
        return f"1 {kind}" if number == 1 else f"{number} {kind}s"
    return " and ".join(dict.fromkeys(kinds.get(char, _sign(char)) for char in text))


def _is_odd(char: str) -> bool:
    """Whether it looks like another character, or is invisible."""
    return char.isspace() or not char.isascii() or not char.isprintable()


def _sign(char: str) -> str:
    if char in " \t":
        return "a space" if char == " " else "a tab"
    return f"{char!r} (U+{ord(char):04X} {unicodedata.name(char, 'unnamed').lower()})"


def _shown(text: str) -> str:
    text = visible(text)
    return f"`{text}`" if len(text) <= _SHOWN else f"`{text[:_SHOWN]}…`"
