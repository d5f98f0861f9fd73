"""Edit: parts of a text file replaced, all or nothing, and not a byte besides."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forge_tools.errors import InvalidCallError, SandboxError
from forge_tools.model import ToolCategory, ToolResult
from forge_tools.sandbox.paths.files import KEPT_BYTES, Snapshot
from forge_tools.sandbox.paths.places import Check, Place
from forge_tools.sandbox.paths.refusals import TOO_LARGE
from forge_tools.tools.builtin import PATH, option, parameters_of
from forge_tools.tools.file.changes import Change, ChangingTool, facts_of, require_match, unified
from forge_tools.tools.file.matches import WAYS
from forge_tools.tools.file.replacements import NO_CHANGE, Step, Taken, take
from forge_tools.tools.file.text import View, binary_kind, encode, encoding_for

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
        "new_string": {"type": "string", "maxLength": _MAX_CHARS, "description": "Text to put in its place."},
        "replace_all": {"type": "boolean", "description": "Replace every occurrence."},
        "expected_replacements": {
            "type": "integer", "minimum": 1, "maximum": 100_000, "description": "Replace exactly so many.",
        },
    },
    "required": ["old_string", "new_string"],
    "additionalProperties": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Editing:
    """What is replaced by what, and under which conditions."""

    file_path: str = option(
        "Text file to change, relative to the working directory or absolute.", aliases=("path",), **PATH
    )
    old_string: str | None = option(
        "Text to replace, as it stands in the file, with enough to be the only one. Empty: make it.",
        None, max_length=_MAX_CHARS,
    )  # fmt: skip
    new_string: str | None = option("Text to put in its place.", None, max_length=_MAX_CHARS)
    replace_all: bool = option("Replace every occurrence.", default=False)
    expected_replacements: int | None = option(
        "Replace every occurrence if there are exactly so many, else none.", None, minimum=1, maximum=100_000
    )
    edits: Sequence[Mapping[str, Any]] | None = option(
        "Several replacements instead, one after the other, all or none: {old_string, new_string, ...}.",
        None,
        items=_EDIT,
    )
    match: Literal["exact", "whitespace"] = option(
        "exact; whitespace: lines may also differ in blanks at their ends and in one common indentation.", "exact"
    )
    near_line: int | None = option("Of several occurrences, replace the one nearest to this line.", None, minimum=1)
    if_match: str | None = option(
        "Edit only if the file still has this etag, which Read and the last write returned.", None, max_length=64
    )
    encoding: str | None = option(
        "Text encoding, such as latin-1 or shift_jis. By default it is detected.", None, max_length=64
    )

    def __post_init__(self) -> None:
        self._steps()  # what does not fit together is refused before any file is looked for

    def plan(self, place: Place, seen: Snapshot | None, check: Check) -> Change:
        """Decide the bytes, or refuse; nothing is touched."""
        steps = self._steps()
        require_match(place, seen, self.if_match)
        if not steps[0].old and len(steps) == 1:
            return self._filled(steps[0].new, place, seen)
        if seen is None:
            raise place.not_found()
        view = self._view(place, seen)
        taken: list[Taken] = []
        for step in steps:
            taken.append(take(step, taken[-1].text if taken else view.text, view, place.shown, check))
        data = view.data(taken[-1].text)
        if data == seen.data:
            raise SandboxError(f"The edits leave {place.shown} as it is", NO_CHANGE)
        did, facts = _told(view, taken, list(dict.fromkeys(_warnings(steps))))
        return Change(
            data=data,
            result=ToolResult.ok(f"Edited {place.shown}: {did}", **facts_of(seen, data), **facts),
            preview=f"Would edit {place.shown}: {did}",
        )

    def _steps(self) -> list[Step]:
        return self._single() if self.edits is None else self._listed(self.edits)

    def _single(self) -> list[Step]:
        if self.old_string is None or self.new_string is None:
            raise InvalidCallError("Pass old_string and new_string, or edits with several of them")
        if self.near_line is not None and (self.replace_all or self.expected_replacements is not None):
            what = "near_line chooses one of several places; leave out replace_all and expected_replacements"
            raise InvalidCallError(what)
        step = Step(
            old=self.old_string,
            new=self.new_string,
            replaces_all=self.replace_all,
            expected=self.expected_replacements,
            near_line=self.near_line,
            with_blanks=self.match == "whitespace",
        )
        return [step]

    def _listed(self, edits: Sequence[Mapping[str, Any]]) -> list[Step]:
        single = (self.old_string, self.new_string, self.expected_replacements, self.near_line)
        if self.replace_all or any(value is not None for value in single):
            what = "Pass either edits, or old_string and new_string with what belongs to them, not both"
            raise InvalidCallError(what)
        if not 1 <= len(edits) <= _MAX_EDITS:
            raise InvalidCallError(f"edits has {len(edits)} items; pass 1 to {_MAX_EDITS}")
        return [
            Step(
                old=edit["old_string"],
                new=edit["new_string"],
                replaces_all=edit.get("replace_all") or False,
                expected=edit.get("expected_replacements"),
                with_blanks=self.match == "whitespace",
                label=f"edits[{index}]",
            )
            for index, edit in enumerate(edits)
        ]

    def _filled(self, new: str, place: Place, seen: Snapshot | None) -> Change:
        """Make a file, or fill an empty one."""
        if seen is not None and seen.status.st_size:
            what = f"old_string is empty, and {place.shown} is not. Pass what is to be replaced, or use Write"
            raise InvalidCallError(what)
        if not new and seen is not None:
            raise SandboxError(f"{place.shown} is empty already", NO_CHANGE)
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

    Nothing is matched by likeness. Line ends may differ from the file's; what is put in gets those of its place.
    """

    name = "Edit"
    aliases = ("edit_file",)
    category = ToolCategory.FILE
    options = Editing
    parameters = parameters_of(Editing)


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
        if any(map(_OMISSION.search, step.new.splitlines())) and not _OMISSION.search(step.old):
            yield "new_string seems to leave out code ('... rest unchanged'); it was written as it is"
        if r"\n" in step.new and "\n" not in step.new and r"\n" not in step.old and "\n" in step.old:
            yield r"new_string has \n as two characters and no line end; it was written as it is"
        if "&lt;" in step.new and "<" not in step.new and "<" in step.old:
            yield "new_string has &lt; where old_string has <; it was written as it is"
