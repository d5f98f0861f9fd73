"""Glob: files and folders whose paths match a pattern, in the same order on every host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from forge_tools.errors import InvalidCallError
from forge_tools.model import ToolCategory, ToolResult
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.schema import clean_text
from forge_tools.tools.builtin import (
    GLOBS,
    PATH,
    Deadline,
    LookingTool,
    Page,
    check_text,
    counted,
    option,
    room_for_records,
)
from forge_tools.tools.file.globs import WILD, Names, Pattern, by_path, excluding
from forge_tools.tools.file.walk import Level, Walk

MAX_EXCLUDED = 50
HINT_SECONDS = 0.3
"""How long to look in each way that would find more, if nothing was found."""

_KINDS = {"file": "file", "directory": "folder", "any": "path"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    pattern: str = option(
        "Pattern for paths relative to path: **/*.py in all folders, *.py only in that folder.",
        min_length=1, max_length=1024,
    )  # fmt: skip
    path: str = option("Folder to start from, by default the working directory.", ".", **PATH)
    exclude: Sequence[str] | None = option(
        "What to leave out, in .gitignore syntax: node_modules, *.min.js, /dist.", None, **GLOBS
    )
    respect_ignore: bool = option(
        "Leave out what .gitignore and .ignore files name, tracked files excepted.", default=True
    )
    hidden: bool = option("Find hidden files too; .git is always left out.", default=True)
    type: Literal["file", "directory", "any"] = option(
        "file: files and links; directory: folders; any: everything.", "file"
    )
    case_sensitive: bool = option("Distinguish upper and lower case.", default=True)
    sort: Literal["path", "mtime"] = option("path: the same order on every host; mtime: newest first.", "path")
    limit: int = option("Maximum number of paths shown.", 1000, minimum=1, maximum=10_000, aliases=("head_limit",))
    offset: int = option("Paths to skip, to see the next page.", 0, minimum=0)


class Glob(LookingTool):
    """Find files by name in the workspace: src/**/*.py, *.{ts,tsx}. Files that git ignores are left out, links are not followed.

    Paths are sorted, so that pages are consistent. `*` and `?` stay within a name, `**` as a whole name stands for any
    number of folders; `*.py` finds files of the folder itself, `**/*.py` those below it too.
    """

    name = "Glob"
    aliases = ("glob",)
    category = ToolCategory.FILE
    options = _Wanted

    def _answer(self, wish: _Wanted, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
        wanted = _relative(wish)
        exclude = wanted.exclude or ()
        if len(exclude) > MAX_EXCLUDED:
            raise InvalidCallError(f"exclude has {len(exclude)} globs; the limit is {MAX_EXCLUDED}")
        for glob in (wanted.pattern, *exclude):
            check_text("A glob", glob)
        page = Page(offset=wanted.offset, limit=wanted.limit, room=room_for_records(max_chars))
        with workspace.open_folder(wanted.path) as target:
            paths, walk = find(workspace, target, wanted, deadline)
            result = _result(target, wanted, paths, walk, page)
            if not paths and not walk.is_partial:
                seconds = min(HINT_SECONDS, deadline.margin)
                for before, wider, after in _wider(wanted):
                    if number := len(find(workspace, target, wider, deadline.within(seconds))[0]):
                        result.output += f" {before}{counted(number, _KINDS[wider.type])}{after}"
            return result


def find(workspace: Workspace, target: Handle, wanted: _Wanted, deadline: Deadline) -> tuple[list[str], Walk]:
    """Find all matches below a folder, as relative paths, or as many as time allows; return them with the walk."""
    pattern = Pattern(wanted.pattern, case_sensitive=wanted.case_sensitive)
    excluded = excluding(wanted.exclude or ())
    walk = Walk(workspace, target, deadline, respect_ignore=wanted.respect_ignore, hidden=wanted.hidden)
    paths, times = list[str](), dict[str, int]()
    for level in walk.levels():
        for names in (level.files, level.links, level.others, level.folders):
            out = excluded.decide(Names(names), level.path, are_folders=names is level.folders)[0] if excluded else ()
            names[:] = [name for name in names if name not in out] if out else names
        matching = pattern.match(level.path, _candidates(level, wanted.type))
        paths += matching
        if wanted.sort == "mtime":
            times |= {path: _modified(level, path) for path in matching}
        level.folders[:] = [name for name in level.folders if pattern.may_be_in(f"{level.path}{name}/")]
    paths.sort(key=by_path)
    if wanted.sort == "mtime":
        paths.sort(key=times.__getitem__, reverse=True)
    return paths, walk


def _relative(wanted: _Wanted) -> _Wanted:
    """Start an absolute pattern in the folder that its plain names lead to."""
    if not wanted.pattern.startswith("/"):
        return wanted
    names = [name for name in wanted.pattern.split("/") if name]
    plain = max(0, next((index for index, name in enumerate(names) if WILD.search(name)), len(names) - 1))
    return replace(wanted, path="/" + "/".join(names[:plain]), pattern="/".join(names[plain:]))


def _candidates(level: Level, kind: str) -> list[str]:
    folders = [name for name in level.folders if name not in level.ignored_folders]
    if kind == "directory":
        return folders
    return [*level.files, *level.links] if kind == "file" else [*level.files, *level.links, *level.others, *folders]


def _modified(level: Level, path: str) -> int:
    try:
        return level.folder.stat(path[len(level.path) :]).st_mtime_ns
    except OSError:  # gone since it was listed
        return 0


def _result(target: Handle, wanted: _Wanted, paths: list[str], walk: Walk, page: Page) -> ToolResult:
    unit = _KINDS[wanted.type]
    for path in paths:
        if not page.add(walk.shown(path)):
            break
    warnings = [f"{path}: {reason}" for path, reason in walk.faults]
    total = None if walk.is_partial else len(paths)
    notes, facts = page.notes(unit, total=total, is_partial=walk.is_partial, warnings=warnings)
    where = "the working directory" if target.name == "." else target.name
    none = [] if paths else [f"No {unit}s match '{clean_text(wanted.pattern)}' in {where}."]
    return ToolResult.ok("\n".join([*page.records, *notes, *none]), **facts)


def _wider(wanted: _Wanted) -> Iterator[tuple[str, _Wanted, str]]:
    """Yield wider searches that may find something, each with the words before and after the number it finds."""
    wanted = replace(wanted, sort="path")
    if not wanted.pattern.startswith("**/"):
        deep = f"**/{wanted.pattern}"
        yield f"'{clean_text(deep)}' would match ", replace(wanted, pattern=deep), "."
    if wanted.respect_ignore:
        hidden = " hidden by ignore rules (respect_ignore=false shows them)."
        yield "", replace(wanted, respect_ignore=False), hidden
    if wanted.case_sensitive:
        yield "case_sensitive=false would match ", replace(wanted, case_sensitive=False), "."
    if wanted.type == "file":
        yield "type=directory would match ", replace(wanted, type="directory"), "."
