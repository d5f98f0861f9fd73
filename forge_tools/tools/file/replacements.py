"""One replacement among the edits of a call: found, counted, and put in the place of what it replaces."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.files import KEPT_BYTES
from forge_tools.sandbox.paths.places import Check
from forge_tools.sandbox.paths.refusals import TOO_LARGE
from forge_tools.tools.file.matches import WAYS, Found, Match, find_matches, nearest, reindented
from forge_tools.tools.file.text import View

NO_MATCH = "EDIT_NO_MATCH"
NOT_UNIQUE = "EDIT_NOT_UNIQUE"
NO_CHANGE = "EDIT_NO_CHANGE"

_LISTED = 10
_JOINED = 8192
_TELLING = 8  # characters; less than that is in many files by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Replace `old` by `new`. `label` names the edit where there are several."""

    old: str
    new: str
    replaces_all: bool = False
    expected: int | None = None
    near_line: int | None = None
    with_blanks: bool = False
    label: str = ""

    def named(self, parameter: str) -> str:
        return f"{self.label}.{parameter}" if self.label else parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one step has done: the text after it, how it matched, and at which lines (of the text before it)."""

    text: str
    matched: str
    count: int
    lines: list[int]
    added: int
    removed: int


def take(step: Step, text: str, view: View, shown: str, check: Check) -> Taken:
    """Replace in `text`, a state of the view.

    Raises:
        SandboxError: there is no match, or not the one that is meant; with the closest place and the way out.
    """
    if step.old == step.new:
        raise SandboxError(f"{step.named('old_string')} and {step.named('new_string')} are identical", NO_CHANGE)
    old = view.pattern(step.old)
    found = find_matches(text, old, check, with_blanks=step.with_blanks) if old else None
    if not old or not found:
        raise _no_match(step, text, view, shown)
    chosen = _chosen(step, text, old, found, shown)
    new = view.insertion(step.new, shown, step.named("new_string"), step.old)
    if len(text) + (len(new) - len(old)) * len(chosen) > KEPT_BYTES:
        what = f"{shown} would be larger than {KEPT_BYTES:,} bytes, where Edit stops. Nothing was changed"
        raise SandboxError(what, TOO_LARGE)
    eol = "\r\n" if "\n" in new and 2 * text.count("\r\n") > text.count("\n") else "\n"

    def fitted(match: Match) -> str:
        return _fitted(step, new, match, text, eol)

    if chosen is found and found.way == WAYS[0]:  # places of exact matches are all the same
        first = fitted(next(iter(found)))
        replaced, gained = text.replace(old, first), len(found) * (first.count("\n") - old.count("\n"))
    else:
        replaced, gained = _replaced(text, chosen, fitted, check)
    removed = _lines_touched(text, chosen)
    lines = list(islice(_lines(text, chosen), _LISTED))
    added = max(0, removed + gained)
    return Taken(text=replaced, matched=found.way, count=len(chosen), lines=lines, added=added, removed=removed)


def _chosen(step: Step, text: str, old: str, found: Found, shown: str) -> Found:
    name, occurs = step.named("old_string"), f"occurs {_times(len(found))} in {shown} ({_where(text, found)})"
    if step.expected is not None and len(found) != step.expected:
        what = f"{name} {occurs}, not {step.expected:,}"
        raise SandboxError(f"{what}. Add context, or correct expected_replacements", NOT_UNIQUE)
    if step.replaces_all or step.expected is not None:
        return found
    if len(found) == 1:
        first = next(iter(found))
        if found.way == WAYS[0] and text.find(old, first.start + 1, first.end + len(old) - 1) >= 0:
            what = f"{name} occurs at places that overlap in {shown} ({_where(text, found)})"
            raise SandboxError(f"{what}: which one is meant? Add context", NOT_UNIQUE)
        return found
    if step.near_line is not None:
        near = step.near_line
        _, one = min(zip(_lines(text, found), found, strict=True), key=lambda pair: abs(pair[0] - near))
        return Found(found.way, lambda: iter([one]), 1)
    ways = "Add context, or replace_all=true" if step.label else "Add context, set near_line, or replace_all=true"
    raise SandboxError(f"{name} {occurs}. {ways}", NOT_UNIQUE)


def _replaced(text: str, chosen: Found, fitted: Callable[[Match], str], check: Check) -> tuple[str, int]:
    """Return the text with the chosen places replaced, and how many lines it has more."""
    pieces: list[str] = []
    parts: list[str] = []
    at = gained = 0
    for number, match in enumerate(chosen):
        if number % _JOINED == 0:  # a list of all pieces would take many times what they hold
            check()
            parts.append("".join(pieces))
            pieces.clear()
        new = fitted(match)
        gained += new.count("\n") - text.count("\n", match.start, match.end)
        pieces += [text[at : match.start], new]
        at = match.end
    return "".join([*parts, *pieces, text[at:]]), gained


def _fitted(step: Step, new: str, match: Match, text: str, file_eol: str) -> str:
    """The new text with the indentation and the line ends of its place; a caller who writes `\\r` means what it says."""
    new = reindented(new, match)
    if "\n" not in new or "\r" in step.new or "\r" in step.old:
        return new
    newlines = text.count("\n", match.start, match.end)
    crlf = text.count("\r\n", match.start, match.end)
    eol = file_eol if not newlines else "\r\n" if 2 * crlf > newlines else "\n"
    return new.replace("\n", eol) if eol != "\n" else new


def _no_match(step: Step, text: str, view: View, shown: str) -> SandboxError:
    what = f"{step.named('old_string')} was not found in {shown}."
    readable = view.readable(text)
    new = view.pattern(step.new)
    if len(step.new.strip()) >= _TELLING and new and (at := text.find(new)) >= 0:
        what += f" The file already contains new_string, at line {text.count(chr(10), 0, at) + 1:,}."
    close = nearest(readable, step.old)
    if close is None:
        what += " Nothing in the file is like it. Read the file and copy the text from there"
        return SandboxError(what, NO_MATCH)
    where = f"line {close.first:,} is" if close.first == close.last else f"lines {close.first:,}-{close.last:,} are"
    return SandboxError(f"{what} Closest: {where} {close.alike:.0%} alike; {close.why}", NO_MATCH)


def _where(text: str, found: Found) -> str:
    lines = ", ".join(f"{line:,}" for line in islice(_lines(text, found), _LISTED))
    return f"line{'s' if len(found) > 1 else ''} {lines}{', …' if len(found) > _LISTED else ''}"


def _lines(text: str, places: Iterable[Match]) -> Iterator[int]:
    line, at = 1, 0
    for match in places:
        line += text.count("\n", at, match.start)
        at = match.start
        yield line


def _lines_touched(text: str, places: Found) -> int:
    """How many lines of the text hold a part of what is replaced."""
    count = until = 0
    for first, match in zip(_lines(text, places), places, strict=True):
        last = first + text.count("\n", match.start, max(match.start, match.end - 1))
        count += max(0, last - max(first, until + 1) + 1)
        until = last
    return count


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
