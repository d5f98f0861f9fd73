"""One replacement among the edits of a call: found, counted, and put in the place of what it replaces."""

from dataclasses import dataclass

from forge_tools.errors import SandboxError
from forge_tools.sandbox.refusals import TOO_LARGE
from forge_tools.sandbox.snapshots import KEPT_BYTES
from forge_tools.tools.file.matching import WAYS, Match, find_matches, reindented
from forge_tools.tools.file.nearest import nearest
from forge_tools.tools.file.views import View

NO_MATCH = "EDIT_NO_MATCH"
NOT_UNIQUE = "EDIT_NOT_UNIQUE"
NO_CHANGE = "EDIT_NO_CHANGE"

_LISTED = 10
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


def take(step: Step, text: str, view: View, shown: str) -> Taken:
    """Replace in `text`, a state of the view.

    Raises:
        SandboxError: there is no match, or not the one that is meant; with the closest place and the way out.
    """
    if step.old == step.new:
        raise SandboxError(f"{step.named('old_string')} and {step.named('new_string')} are identical", NO_CHANGE)
    old = view.pattern(step.old)
    matched, found = find_matches(text, old, with_blanks=step.with_blanks) if old else ("exact", [])
    if not found:
        raise _no_match(step, text, view, shown)
    chosen = _chosen(step, text, found, shown)
    new = view.insertion(step.new, shown, step.named("new_string"), step.old)
    pieces, at, fitted = [], 0, ""
    file_eol = "\r\n" if 2 * text.count("\r\n") > text.count("\n") else "\n"
    for number, match in enumerate(chosen):
        if not number or matched != WAYS[0]:  # places of exact matches are all the same
            fitted = _fitted(step, new, match, text, file_eol)
        pieces += [text[at : match.start], fitted]
        at = match.end
    if len(text) + (len(new) - len(old or "")) * len(chosen) > KEPT_BYTES:
        raise SandboxError(
            f"{shown} would be larger than {KEPT_BYTES:,} bytes, where Edit stops. Nothing was changed", TOO_LARGE
        )
    replaced = "".join([*pieces, text[at:]])
    removed = _lines_touched(text, chosen)
    gained = replaced.count("\n") - text.count("\n")
    return Taken(
        text=replaced,
        matched=matched,
        count=len(chosen),
        lines=_lines_of(text, chosen[:_LISTED]),
        added=max(0, removed + gained),
        removed=removed,
    )


def _chosen(step: Step, text: str, found: list[Match], shown: str) -> list[Match]:
    old = step.named("old_string")
    if step.expected is not None:
        if len(found) != step.expected:
            what = f"{old} occurs {_times(len(found))} in {shown} ({_where(text, found)}), not {step.expected:,}"
            raise SandboxError(f"{what}. Add context, or correct expected_replacements", NOT_UNIQUE)
        return found
    if step.replaces_all or len(found) == 1:
        return found
    if step.near_line is not None:
        lines = _lines_of(text, found)
        return [found[min(range(len(found)), key=lambda index: abs(lines[index] - (step.near_line or 0)))]]
    ways = "Add context, or replace_all=true" if step.label else "Add context, set near_line, or replace_all=true"
    raise SandboxError(f"{old} occurs {_times(len(found))} in {shown} ({_where(text, found)}). {ways}", NOT_UNIQUE)


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
        return SandboxError(
            f"{what} Nothing in the file is like it. Read the file and copy the text from there", NO_MATCH
        )
    where = f"line {close.first:,} is" if close.first == close.last else f"lines {close.first:,}-{close.last:,} are"
    return SandboxError(f"{what} Closest: {where} {close.alike:.0%} alike; {close.why}", NO_MATCH)


def _where(text: str, found: list[Match]) -> str:
    lines = ", ".join(f"{line:,}" for line in _lines_of(text, found[:_LISTED]))
    return f"line{'s' if len(found) > 1 else ''} {lines}{', …' if len(found) > _LISTED else ''}"


def _lines_of(text: str, matches: list[Match]) -> list[int]:
    lines, line, at = [], 1, 0
    for match in matches:
        line += text.count("\n", at, match.start)
        at = match.start
        lines.append(line)
    return lines


def _lines_touched(text: str, matches: list[Match]) -> int:
    """How many lines of the text hold a part of what is replaced."""
    count, until = 0, -1
    for match in matches:
        last = max(match.start, match.end - 1)
        if match.start > until:
            count += 1
        elif last <= until:
            continue
        count += text.count("\n", max(match.start, until + 1), last)
        end = text.find("\n", last)
        until = len(text) if end < 0 else end
    return count


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
