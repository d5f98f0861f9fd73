"""One edit: which spans of a file are replaced by what, all or nothing, and how it is told."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forge_tools.errors import InvalidCallError, SandboxError
from forge_tools.records import ToolResult
from forge_tools.sandbox.paths.files import KEPT_BYTES, Snapshot
from forge_tools.sandbox.paths.places import Check, Place
from forge_tools.sandbox.paths.refusals import TOO_LARGE
from forge_tools.tools.file.changes import Change, facts_of, require_match
from forge_tools.tools.file.diffs import unified
from forge_tools.tools.file.matching import WAYS
from forge_tools.tools.file.steps import NO_CHANGE, Step, Taken, take
from forge_tools.tools.file.text import Encoding, binary_kind
from forge_tools.tools.file.views import View
from forge_tools.tools.file.wording import encode, encoding_for

_MAX_EDITS = 100
_SHOWN_LINES = 10
_OMISSION = re.compile(
    r"(\.\.\.|…).{0,40}\b(rest|existing|unchanged|remaining)\b|\b(rest of|existing|remaining)\b.{0,30}(\.\.\.|…|unchanged)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Editing:
    """What the caller wants replaced, as the parameters of Edit name it."""

    old_string: str | None = None
    new_string: str | None = None
    replace_all: bool = False
    expected_replacements: int | None = None
    edits: Sequence[Mapping[str, Any]] | None = None
    match: str = "exact"
    near_line: int | None = None
    if_match: str | None = None
    encoding: str | None = None
    steps: list[Step] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.steps.extend(self._listed() if self.edits is not None else self._single())

    def plan(self, place: Place, seen: Snapshot | None, check: Check) -> Change:
        """Decide the bytes, or refuse; nothing is touched."""
        require_match(place, seen, self.if_match)
        if not self.steps[0].old and len(self.steps) == 1:
            return self._filled(place, seen)
        if seen is None:
            raise place.not_found()
        view = self._view(place, seen)
        taken: list[Taken] = []
        for step in self.steps:
            taken.append(take(step, taken[-1].text if taken else view.text, view, place.shown, check))
        data = view.data(taken[-1].text)
        if data == seen.data:
            raise SandboxError(f"The edits leave {place.shown} as it is", NO_CHANGE)
        did, facts = self._told(view, taken)
        return Change(
            data=data,
            result=ToolResult.ok(f"Edited {place.shown}: {did}", **facts_of(seen, data), **facts),
            preview=f"Would edit {place.shown}: {did}",
        )

    def _single(self) -> list[Step]:
        if self.old_string is None or self.new_string is None:
            raise InvalidCallError("Pass old_string and new_string, or edits with several of them")
        if self.near_line is not None and (self.replace_all or self.expected_replacements is not None):
            raise InvalidCallError(
                "near_line chooses one of several places; leave out replace_all and expected_replacements"
            )
        return [
            Step(
                old=self.old_string,
                new=self.new_string,
                replaces_all=self.replace_all,
                expected=self.expected_replacements,
                near_line=self.near_line,
                with_blanks=self.match == "whitespace",
            )
        ]

    def _listed(self) -> list[Step]:
        single = (self.old_string, self.new_string, self.expected_replacements, self.near_line)
        if self.replace_all or any(value is not None for value in single):
            raise InvalidCallError(
                "Pass either edits, or old_string and new_string with what belongs to them, not both"
            )
        edits = self.edits or ()
        if not 1 <= len(edits) <= _MAX_EDITS:
            raise InvalidCallError(f"edits has {len(edits)} items; pass 1 to {_MAX_EDITS}")
        steps = []
        for index, edit in enumerate(edits):
            steps.append(
                Step(
                    old=edit["old_string"],
                    new=edit["new_string"],
                    replaces_all=edit.get("replace_all") or False,
                    expected=edit.get("expected_replacements"),
                    with_blanks=self.match == "whitespace",
                    label=f"edits[{index}]",
                )
            )
        return steps

    def _filled(self, place: Place, seen: Snapshot | None) -> Change:
        """Make a file, or fill an empty one."""
        if seen is not None and seen.status.st_size:
            what = f"old_string is empty, and {place.shown} is not. Pass what is to be replaced, or use Write"
            raise InvalidCallError(what)
        new = self.steps[0].new
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
        encoding: Encoding = encoding_for(seen.head, self.encoding)
        if not encoding.bom and self.encoding is None and (kind := binary_kind(seen.head)):
            raise SandboxError(f"{place.shown} is binary ({kind}); text tools cannot change it", "BINARY_FILE")
        return View.of(seen.data, encoding, place.shown)

    def _told(self, view: View, taken: list[Taken]) -> tuple[str, dict[str, Any]]:
        lines = [line for one in taken for line in one.lines]
        count, added, removed = (sum(getattr(one, name) for one in taken) for name in ("count", "added", "removed"))
        where = ", ".join(f"{line:,}" for line in lines[:_SHOWN_LINES]) + (", …" if count > _SHOWN_LINES else "")
        s = "s" if count > 1 else ""
        diff = unified(view.text, taken[-1].text, view.readable)
        warnings = self._warnings()
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

    def _warnings(self) -> list[str]:
        warnings = []
        for step in self.steps:
            if any(_OMISSION.search(line) for line in step.new.splitlines()) and not _OMISSION.search(step.old):
                warnings.append("new_string seems to leave out code ('... rest unchanged'); it was written as it is")
            if r"\n" in step.new and "\n" not in step.new and r"\n" not in step.old and "\n" in step.old:
                warnings.append(r"new_string has \n as two characters and no line end; it was written as it is")
            if "&lt;" in step.new and "<" not in step.new and "<" in step.old:
                warnings.append("new_string has &lt; where old_string has <; it was written as it is")
        return list(dict.fromkeys(warnings))
