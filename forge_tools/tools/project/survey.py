"""The contents of a project: its files, their texts, and claims about it, each with the line that shows it."""

import os
import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from forge_tools.model import ToolCategory, ToolResult
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.folders import Folder
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import Deadline, LookingTool, counted
from forge_tools.tools.file.globs import by_path
from forge_tools.tools.file.text import SAMPLE_BYTES, binary_kind, decoded, sniff, visible
from forge_tools.tools.file.walk import Walk

Confidence = Literal["certain", "likely", "guess"]

MAX_LISTED = 40
_MAX_CHARS = 160

GENERATED = re.compile(
    r"(?:^|/)(?:vendor|node_modules|third_party|dist|generated)/|\.min\.\w+$|_pb2(?:_grpc)?\.pyi?$|\.pb\.\w+$|\.g\.dart$|-lock\.\w+$"
)


class Claim(NamedTuple):
    """A statement about a project; `evidence` is `path:line`, as shown to people."""

    what: str
    evidence: str
    confidence: Confidence = "certain"

    def __str__(self) -> str:
        return f"{self.what} [{self.evidence}; {self.confidence}]"


@dataclass(slots=True)
class Claims:
    """Claims by section; of several equal ones the first counts."""

    sections: dict[str, dict[str, Claim]] = field(default_factory=dict)

    def add(self, section: str, what: str, evidence: str, confidence: Confidence = "certain") -> None:
        what = visible(" ".join(what.split()))[:_MAX_CHARS]
        self.sections.setdefault(section, {}).setdefault(what, Claim(what, evidence, confidence))

    def of(self, section: str) -> list[Claim]:
        return list(self.sections.get(section, {}).values())


class Survey:
    """The files below a folder that ignore rules do not exclude, with their sizes, in the same order on every host.

    Links are not followed and secrets are left out. Create it on a thread, since it reads the disk.
    """

    def __init__(self, workspace: Workspace, target: Handle, deadline: Deadline) -> None:
        self.deadline = deadline
        self.name = target.name
        self._texts: dict[str, str] = {}
        self._walk = walk = Walk(workspace, target, deadline)
        found: dict[str, int] = {}
        for level in walk.levels():
            hidden = target.root.root.protection.hidden_of([*level.files, *level.folders])
            level.folders[:] = [name for name in level.folders if name not in hidden]
            for name in level.files:
                if name not in hidden:
                    found[level.path + name] = _size(level.folder, name)
        self.files = {path: found[path] for path in sorted(found, key=by_path)}
        self.is_partial = walk.is_partial
        self.notes = [f"{path}: {reason}" for path, reason in walk.faults]
        if self.is_partial:
            self.notes.append("the call's time ran out before all folders were seen; pass a path inside")

    def shown(self, path: str) -> str:
        return self._walk.shown(path)

    def data(self, path: str, limit: int = SAMPLE_BYTES) -> bytes | None:
        """Return the first bytes of a file, even one that the walk left out; None if it cannot be read."""
        if (handle := self._walk.open(path)) is None:
            return None
        with handle:
            return os.pread(handle.fd, limit, 0)

    def text(self, path: str) -> str:
        """Return the beginning of a file, at most 256 KiB; "" if it is not text."""
        if path not in self._texts:
            data = self.data(path) or b""
            encoding = sniff(data, None)
            is_text = bool(encoding.bom) or not binary_kind(data)
            self._texts[path] = decoded(data, encoding).replace("\r\n", "\n") if is_text else ""
        return self._texts[path]

    def at(self, path: str, needle: str, after: str = "") -> str:
        """Return `path:line` of a word in a file, looked for after another one; the first line if neither is there."""
        text = self.text(path)
        start = max(0, text.find(after)) if after else 0
        found = re.compile(rf"(?<![\w-]){re.escape(needle)}(?![\w-])").search(text, start)
        return self.line(path, found.start() if found else start)

    def line(self, path: str, position: int) -> str:
        """Return `path:line` of a position in a file."""
        return f"{self.shown(path)}:{self.text(path).count(chr(10), 0, position) + 1}"

    def malformed(self, path: str, error: Exception) -> None:
        """Note that a file could not be parsed, and why."""
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition("\n")[0]
        cut = f" (only its first {SAMPLE_BYTES:,} bytes were read)" if self.files[path] > SAMPLE_BYTES else ""
        self.notes.append(f"{self.shown(path)} is malformed: {visible(reason)[:_MAX_CHARS]}{cut}")


class ProjectTool(LookingTool):
    """A tool that describes a project from the files of a folder, and runs none of them."""

    category = ToolCategory.OTHER
    tags = ("project",)

    def _answer(self, wish: Any, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
        with workspace.open_folder(wish.path) as target:
            survey = Survey(workspace, target, deadline)
            text, facts = self._described(survey, wish, max_chars)
        facts |= {"files": len(survey.files), "bytes": sum(survey.files.values())}
        facts |= {"warnings": survey.notes[:20]} if survey.notes else {}
        return ToolResult.ok(text, **facts, **({"partial": True} if survey.is_partial else {}))

    @abstractmethod
    def _described(self, survey: Survey, wish: Any, max_chars: int) -> tuple[str, dict[str, Any]]:
        """Return the text and metadata of the answer."""


def is_written(path: str) -> bool:
    """Whether a file was written by hand, judging by its path."""
    return not GENERATED.search(path)


def section(title: str, claims: Iterable[object]) -> list[str]:
    """Return a heading and at most `MAX_LISTED` of its claims; nothing without claims."""
    lines = [str(claim) for claim in claims]
    more = len(lines) - MAX_LISTED
    shown = [f"- {line}" for line in lines[:MAX_LISTED]] + ([f"- and {more:,} more"] if more > 0 else [])
    return [f"## {title}", *shown] if shown else []


def size_of(bytes_: int, files: int) -> str:
    return f"{counted(files, 'file')}, {bytes_:,} bytes"


def _size(folder: Folder, name: str) -> int:
    try:
        return folder.stat(name).st_size
    except OSError:  # deleted since it was listed
        return 0
