"""Why a text is not in a file: the place that comes closest, and in what it differs."""

import difflib
import time
import unicodedata
from collections import defaultdict
from dataclasses import dataclass

from forge_tools.tools.file.text import visible

_SECONDS = 0.05
_MAX_LINES = 200_000
_MAX_CANDIDATES = 200
_LEAST_ALIKE = 0.6
_SHOWN = 60
_COMPARED = 800  # characters; the comparison is quadratic at best, and nothing can stop it meanwhile
_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014", "''\"\"--")


@dataclass(frozen=True, slots=True)
class Nearest:
    """Lines of the file, numbered from 1, that are most like what was looked for, and how they differ."""

    first: int
    last: int
    alike: float
    why: str


def nearest(text: str, old: str) -> Nearest | None:
    """Find the lines that are most like `old`; None where nothing is, or finding it would take long."""
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
    found = lines[start : start + len(wanted)]
    return Nearest(start + 1, start + len(found), alike, _why(wanted, found, start + 1))


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")


def _candidates(lines: list[str], wanted: list[str]) -> list[int]:
    """Where the text could start, judged by the lines and then the words that the two have in common, rare ones first."""
    places = defaultdict(list)
    for number, line in enumerate(lines):
        places[_plain(line)].append(number)
    starts: dict[int, None] = {}
    shared = sorted((len(places[key]), index) for index, key in enumerate(map(_plain, wanted)) if key and key in places)
    for _, index in shared:
        starts |= dict.fromkeys(number - index for number in places[_plain(wanted[index])][:_MAX_CANDIDATES])
    if not starts:
        words = sorted(
            {(word, i) for i, line in enumerate(wanted) for word in line.split()}, key=lambda one: -len(one[0])
        )
        for word, index in words[:8]:
            starts |= dict.fromkeys([n - index for n, line in enumerate(lines) if word in line][:_MAX_CANDIDATES])
    return [start for start in starts if 0 <= start < len(lines)][:_MAX_CANDIDATES]


def _plain(line: str) -> str:
    """A line but for case, blanks and the form of its characters."""
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
    """Say in what a line of the file differs from the one that was looked for."""
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
    """Compare what the lines say, from their first letters on."""
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
    """Whether it looks like another character, or like none."""
    return char.isspace() or not char.isascii() or not char.isprintable()


def _sign(char: str) -> str:
    if char in " \t":
        return "a space" if char == " " else "a tab"
    return f"{char!r} (U+{ord(char):04X} {unicodedata.name(char, 'unnamed').lower()})"


def _shown(text: str) -> str:
    text = visible(text)
    return f"`{text}`" if len(text) <= _SHOWN else f"`{text[:_SHOWN]}…`"
