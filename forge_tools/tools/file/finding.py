"""One search for names: what matches below a folder, in an order that is the same on every host."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.file.globbing import Pattern
from forge_tools.tools.file.globs import by_path
from forge_tools.tools.file.ignoring import Names, Rules, excluding
from forge_tools.tools.file.walking import Level, Walk

Kind = Literal["file", "directory", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to find; the fields are Glob's parameters."""

    pattern: str
    path: str = "."
    exclude: Sequence[str] | None = None
    respect_ignore: bool = True
    hidden: bool = True
    type: Kind = "file"
    case_sensitive: bool = True
    sort: Literal["path", "mtime"] = "path"
    limit: int = 1000
    offset: int = 0


@dataclass(slots=True)
class Found:
    """The matches, as paths relative to the folder that was searched; `faults` are folders that could not be looked into."""

    wanted: Wanted
    paths: list[str] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    is_partial: bool = False


class Finding:
    """Looks for names below one folder, on the calling thread."""

    def __init__(self, workspace: Workspace, target: Handle, is_cancelled: threading.Event) -> None:
        self._workspace = workspace
        self._target = target
        self._is_cancelled = is_cancelled

    def run(self, wanted: Wanted, deadline: Deadline) -> Found:
        """Find all that matches, or what there is time for.

        Raises:
            SandboxError: the pattern is no glob (INVALID_GLOB).
        """
        pattern = Pattern(wanted.pattern, case_sensitive=wanted.case_sensitive)
        excluded = excluding(wanted.exclude or ())
        walk = Walk(
            self._workspace,
            self._target,
            deadline,
            respect_ignore=wanted.respect_ignore,
            hidden=wanted.hidden,
            is_cancelled=self._is_cancelled,
        )
        states, found = {"": pattern.start}, Found(wanted)
        times: dict[str, int] = {}
        for level in walk.levels():
            _leave_out(level, excluded)
            state = states.pop(level.path)
            paths = [level.path + name for name in pattern.match(state, _candidates(level, wanted.type))]
            found.paths += paths
            if wanted.sort == "mtime":
                times |= {path: _modified(level, path) for path in paths}
            inner = [(name, pattern.enter(state, name)) for name in level.folders]
            level.folders[:] = [name for name, reached in inner if reached]
            states |= {f"{level.path}{name}/": reached for name, reached in inner if reached}
        found.paths.sort(key=by_path)
        if wanted.sort == "mtime":
            found.paths.sort(key=times.__getitem__, reverse=True)
        found.faults, found.is_partial = walk.faults, walk.is_partial
        return found

    def count(self, wanted: Wanted, deadline: Deadline) -> int:
        """Count what a wider search would find."""
        return len(self.run(replace(wanted, sort="path"), deadline).paths)


def _candidates(level: Level, kind: Kind) -> list[str]:
    folders = [name for name in level.folders if name not in level.ignored_folders]
    if kind == "directory":
        return folders
    return [*level.files, *level.links] if kind == "file" else [*level.files, *level.links, *level.others, *folders]


def _modified(level: Level, path: str) -> int:
    try:
        return level.folder.stat(path[len(level.path) :]).st_mtime_ns
    except OSError:  # gone since it was listed
        return 0


def _leave_out(level: Level, excluded: Rules | None) -> None:
    if excluded is None:
        return
    for names, are_folders in (
        (level.files, False),
        (level.links, False),
        (level.others, False),
        (level.folders, True),
    ):
        out, _ = excluded.decide(Names(names), level.path, are_folders=are_folders)
        if out:
            names[:] = [name for name in names if name not in out]
