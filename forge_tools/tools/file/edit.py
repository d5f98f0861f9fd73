"""Edit: replaces parts of a text file, all or nothing, and leaves every other byte."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from forge_tools.errors import InvalidCallError, SandboxError
from forge_tools.model import ToolCategory, ToolResult
from forge_tools.sandbox.paths.files import KEPT_BYTES, Snapshot
from forge_tools.sandbox.paths.places import Check, Place
from forge_tools.sandbox.paths.refusals import TOO_LARGE
from forge_tools.tools.builtin import PATH, option
from forge_tools.tools.file.matches import WAYS, Found, Match, find_matches, nearest, reindented
from forge_tools.tools.file.text import View, binary_kind, encode, encoding_for
from forge_tools.tools.file.write import Change, ChangingTool, facts_of, require_match, unified

_MAX_EDITS = 100
_SHOWN_LINES = 10
_MAX_CHARS = 1_000_000
_OMISSION = re.compile(
    r"(\.\.\.|…).{0,40}\b(rest|existing|unchanged|remaining)\b|\b(rest of|existing|remaining)\b.{0,30}(\.\.\.|…|unchanged)",
    re.IGNORECASE,
)
_EDIT = {
    "type": "object",
    "properties": {
        "old_string": {"type": "string", "minLength": 1, "maxLength": _MAX_CHARS, "description": "Text to replace."},
        "new_string": {"type": "string", "maxLength": _MAX_CHARS, "description": "The replacement."},
        "replace_all": {"type": "boolean", "description": "Replace every occurrence."},
        "expected_replacements": {
            "type": "integer", "minimum": 1, "maximum": 100_000, "description": "Replace exactly this many.",
        },
    },
    "required": ["old_string", "new_string"],
    "additionalProperties": False,
}  # fmt: skip
NO_MATCH = "EDIT_NO_MATCH"
NOT_UNIQUE = "EDIT_NOT_UNIQUE"
NO_CHANGE = "EDIT_NO_CHANGE"

_LISTED = 10
_JOINED = 8192
_TELLING = 8  # characters; shorter ones are in many files by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One replacement, with the names that a caller gives its parts; `label` names it if there are several."""

    old_string: str
    new_string: str
    replace_all: bool | None = None
    expected_replacements: int | None = None
    near_line: int | None = None
    with_blanks: bool = False
    label: str = ""

    def named(self, parameter: str) -> str:
        return f"{self.label}.{parameter}" if self.label else parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The result of one step: the text after it, how it matched, and at which lines (of the text before it)."""

    text: str
    matched: str
    count: int
    lines: list[int]
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Editing:
    file_path: str = option(
        "Text file to change, relative to the working directory or absolute.", aliases=("path",), **PATH
    )
    old_string: str | None = option(
        "Text to replace, exactly as in the file, with enough context to be unique. Empty: create the file.",
        None, max_length=_MAX_CHARS,
    )  # fmt: skip
    new_string: str | None = option("The replacement.", None, max_length=_MAX_CHARS)
    replace_all: bool = option("Replace every occurrence.", default=False)
    expected_replacements: int | None = option(
        "Replace every occurrence if there are exactly this many, else none.", None, minimum=1, maximum=100_000
    )
    edits: Sequence[Mapping[str, Any]] | None = option(
        "Several replacements instead, applied in order, all or none: {old_string, new_string, ...}.",
        None,
        items=_EDIT,
    )
    match: Literal["exact", "whitespace"] = option(
        "exact; whitespace: lines may also differ in trailing blanks and in a common indentation.", "exact"
    )
    near_line: int | None = option("Of several occurrences, replace the one nearest to this line.", None, minimum=1)
    if_match: str | None = option(
        "Edit only if the file still has this etag, which Read and the last write returned.", None, max_length=64
    )
    encoding: str | None = option(
        "Text encoding, such as latin-1 or shift_jis. By default it is detected.", None, max_length=64
    )

    def __post_init__(self) -> None:
        self._steps()  # contradictions are refused before any file is looked for

    def plan(self, place: Place, seen: Snapshot | None, check: Check) -> Change:
        steps = self._steps()
        require_match(place, seen, self.if_match)
        if not steps[0].old_string and len(steps) == 1:
            return self._filled(steps[0].new_string, place, seen)
        if seen is None:
            raise place.not_found()
        view = self._view(place, seen)
        taken: list[Taken] = []
        for step in steps:
            taken.append(take(step, taken[-1].text if taken else view.text, view, place.shown, check))
        data = view.data(taken[-1].text)
        if data == seen.data:
            raise SandboxError(f"The edits do not change {place.shown}", NO_CHANGE)
        did, facts = _told(view, taken, list(dict.fromkeys(_warnings(steps))))
        return Change(
            data=data,
            result=ToolResult.ok(f"Edited {place.shown}: {did}", **facts_of(seen, data), **facts),
            preview=f"Would edit {place.shown}: {did}",
        )

    def _steps(self) -> list[Step]:
        single: dict[str, Any] = {"old_string": self.old_string, "new_string": self.new_string}
        single |= {"expected_replacements": self.expected_replacements, "replace_all": self.replace_all or None}
        others = [*single.values(), self.near_line]
        if self.edits is not None and any(value is not None for value in others):
            raise InvalidCallError("Pass either edits, or old_string and new_string with their options, not both")
        if self.edits is not None and not 1 <= len(self.edits) <= _MAX_EDITS:
            raise InvalidCallError(f"edits has {len(self.edits)} items; pass 1 to {_MAX_EDITS}")
        if self.edits is None and (self.old_string is None or self.new_string is None):
            raise InvalidCallError("Pass old_string and new_string, or edits with several of them")
        if self.near_line is not None and (self.replace_all or self.expected_replacements is not None):
            what = "near_line chooses one of several places; leave out replace_all and expected_replacements"
            raise InvalidCallError(what)
        every: dict[str, Any] = {"near_line": self.near_line, "with_blanks": self.match == "whitespace"}
        if self.edits is None:
            return [Step(**single, **every)]
        return [Step(**edit, **every, label=f"edits[{index}]") for index, edit in enumerate(self.edits)]

    def _filled(self, new: str, place: Place, seen: Snapshot | None) -> Change:
        if seen is not None and seen.status.st_size:
            what = f"old_string is empty, but {place.shown} is not. Pass the text to replace, or use Write"
            raise InvalidCallError(what)
        if not new and seen is not None:
            raise SandboxError(f"{place.shown} is already empty", NO_CHANGE)
        encoding = encoding_for(None, self.encoding)
        data = encoding.bom + encode(new, encoding, place.shown, "new_string")
        told = f"{place.shown} ({len(data):,} bytes)"
        did, would = ("Filled", "fill") if seen else ("Created", "create")
        facts = facts_of(seen, data) | {"replacements": 0, "encoding": encoding.name}
        return Change(data=data, result=ToolResult.ok(f"{did} {told}", **facts), preview=f"Would {would} {told}")

    def _view(self, place: Place, seen: Snapshot) -> View:
        if seen.data is None:
            what = f"{place.shown} is {seen.status.st_size:,} bytes; Edit stops at {KEPT_BYTES:,}. Change it with a command"
            raise SandboxError(what, TOO_LARGE)
        encoding = encoding_for(seen.head, self.encoding)
        if not encoding.bom and self.encoding is None and (kind := binary_kind(seen.head)):
            raise SandboxError(f"{place.shown} is binary ({kind}); text tools cannot change it", "BINARY_FILE")
        return View.of(seen.data, encoding, place.shown)


class Edit(ChangingTool):
    """Replace exact text in a file of the workspace; everything else in it stays byte for byte as it was.

    Similar text does not match. Line ends may differ from the file's; new text gets those of its place.
    """

    name = "Edit"
    aliases = ("edit_file",)
    category = ToolCategory.FILE
    options = Editing


def take(step: Step, text: str, view: View, shown: str, check: Check) -> Taken:
    """Replace in `text`, a state of the view."""
    if step.old_string == step.new_string:
        raise SandboxError(f"{step.named('old_string')} and {step.named('new_string')} are identical", NO_CHANGE)
    old = view.pattern(step.old_string)
    found = find_matches(text, old, check, with_blanks=step.with_blanks) if old else None
    if not old or not found:
        raise _no_match(step, text, view, shown)
    chosen = _chosen(step, text, old, found, shown)
    new = view.insertion(step.new_string, shown, step.named("new_string"), step.old_string)
    if len(text) + (len(new) - len(old)) * len(chosen) > KEPT_BYTES:
        what = f"{shown} would be larger than {KEPT_BYTES:,} bytes, where Edit stops. Nothing was changed"
        raise SandboxError(what, TOO_LARGE)
    eol = "\r\n" if "\n" in new and 2 * text.count("\r\n") > text.count("\n") else "\n"

    def fitted(match: Match) -> str:
        return _fitted(step, new, match, text, eol)

    if chosen is found and found.way == WAYS[0]:  # all exact matches are the same text
        first = fitted(next(iter(found)))
        replaced, gained = text.replace(old, first), len(found) * (first.count("\n") - old.count("\n"))
    else:
        replaced, gained = _replaced(text, chosen, fitted, check)
    removed = _lines_touched(text, chosen)
    lines = list(islice(_lines_of(text, chosen), _LISTED))
    added = max(0, removed + gained)
    return Taken(text=replaced, matched=found.way, count=len(chosen), lines=lines, added=added, removed=removed)


def _chosen(step: Step, text: str, old: str, found: Found, shown: str) -> Found:
    name, times = step.named("old_string"), "once" if len(found) == 1 else f"{len(found):,} times"
    occurs = f"occurs {times} in {shown} ({_where(text, found)})"
    if step.expected_replacements is not None and len(found) != step.expected_replacements:
        what = f"{name} {occurs}, not {step.expected_replacements:,}"
        raise SandboxError(f"{what}. Add context, or correct expected_replacements", NOT_UNIQUE)
    if step.replace_all or step.expected_replacements is not None:
        return found
    if len(found) == 1:
        first = next(iter(found))
        if found.way == WAYS[0] and text.find(old, first.start + 1, first.end + len(old) - 1) >= 0:
            what = f"{name} occurs at places that overlap in {shown} ({_where(text, found)})"
            raise SandboxError(f"{what}: which one is meant? Add context", NOT_UNIQUE)
        return found
    if step.near_line is not None:
        near = step.near_line
        _, one = min(zip(_lines_of(text, found), found, strict=True), key=lambda pair: abs(pair[0] - near))
        return Found(found.way, lambda: iter([one]), 1)
    ways = "Add context, or replace_all=true" if step.label else "Add context, set near_line, or replace_all=true"
    raise SandboxError(f"{name} {occurs}. {ways}", NOT_UNIQUE)


def _replaced(text: str, chosen: Found, fitted: Callable[[Match], str], check: Check) -> tuple[str, int]:
    """Return the text with the chosen places replaced, and how many lines it gained."""
    pieces: list[str] = []
    parts: list[str] = []
    at = gained = 0
    for number, match in enumerate(chosen):
        if number % _JOINED == 0:  # a list of all pieces would take many times the size of their content
            check()
            parts.append("".join(pieces))
            pieces.clear()
        new = fitted(match)
        gained += new.count("\n") - text.count("\n", match.start, match.end)
        pieces += [text[at : match.start], new]
        at = match.end
    return "".join([*parts, *pieces, text[at:]]), gained


def _fitted(step: Step, new: str, match: Match, text: str, file_eol: str) -> str:
    """Return the new text with the indentation and the line ends of its place; an explicit `\\r` stays."""
    new = reindented(new, match)
    if "\n" not in new or "\r" in step.new_string or "\r" in step.old_string:
        return new
    newlines = text.count("\n", match.start, match.end)
    crlf = text.count("\r\n", match.start, match.end)
    eol = file_eol if not newlines else "\r\n" if 2 * crlf > newlines else "\n"
    return new.replace("\n", eol) if eol != "\n" else new


def _no_match(step: Step, text: str, view: View, shown: str) -> SandboxError:
    what = f"{step.named('old_string')} was not found in {shown}."
    readable = view.readable(text)
    new = view.pattern(step.new_string)
    if len(step.new_string.strip()) >= _TELLING and new and (at := text.find(new)) >= 0:
        what += f" The file already contains new_string, at line {text.count(chr(10), 0, at) + 1:,}."
    close = nearest(readable, step.old_string)
    if close is None:
        what += " Nothing in the file is similar. Read the file and copy the text from there"
        return SandboxError(what, NO_MATCH)
    return SandboxError(f"{what} Closest: {close}", NO_MATCH)


def _where(text: str, found: Found) -> str:
    lines = ", ".join(f"{line:,}" for line in islice(_lines_of(text, found), _LISTED))
    return f"line{'s' if len(found) > 1 else ''} {lines}{', …' if len(found) > _LISTED else ''}"


def _lines_of(text: str, places: Iterable[Match]) -> Iterator[int]:
    line, at = 1, 0
    for match in places:
        line += text.count("\n", at, match.start)
        at = match.start
        yield line


def _lines_touched(text: str, places: Found) -> int:
    """Return how many lines of the text hold a part of what is replaced."""
    count = until = 0
    for first, match in zip(_lines_of(text, places), places, strict=True):
        last = first + text.count("\n", match.start, max(match.start, match.end - 1))
        count += max(0, last - max(first, until + 1) + 1)
        until = last
    return count


def _told(view: View, taken: list[Taken], warnings: list[str]) -> tuple[str, dict[str, Any]]:
    lines = [line for one in taken for line in one.lines]
    count, added, removed = (sum(getattr(one, name) for one in taken) for name in ("count", "added", "removed"))
    where = ", ".join(f"{line:,}" for line in lines[:_SHOWN_LINES]) + (", …" if count > _SHOWN_LINES else "")
    s = "s" if count > 1 else ""
    diff = unified(view.text, taken[-1].text, view.readable)
    told = [f"{count:,} replacement{s} at line{s} {where} (+{added:,} −{removed:,})"]
    told += [diff if diff is not None else "[the difference is too long to show]"]
    told += [f"[warning: {warning}]" for warning in warnings]
    facts = {
        "replacements": count,
        "lines": lines[:_SHOWN_LINES],
        "diffstat": {"added": added, "removed": removed},
        "matched": max((one.matched for one in taken), key=WAYS.index),
        "encoding": view.encoding.name,
    }
    return "\n".join(told), facts | ({"warnings": warnings} if warnings else {})


def _warnings(steps: list[Step]) -> Iterator[str]:
    for step in steps:
        if any(map(_OMISSION.search, step.new_string.splitlines())) and not _OMISSION.search(step.old_string):
            yield "new_string seems to leave out code ('... rest unchanged'); it was written as it is"
        if (
            r"\n" in step.new_string
            and "\n" not in step.new_string
            and r"\n" not in step.old_string
            and "\n" in step.old_string
        ):
            yield r"new_string has \n as two characters instead of a line end; it was written as it is"
        if "&lt;" in step.new_string and "<" not in step.new_string and "<" in step.old_string:
            yield "new_string has &lt; where old_string has <; it was written as it is"
