"""Glob: files and folders whose paths match a pattern."""

import asyncio
import re
import threading
from dataclasses import replace
from typing import Any

from forge_tools.base import BaseTool
from forge_tools.errors import InvalidCallError
from forge_tools.records import Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.names import MAX_PATH_CHARS
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.file.arguments import check_text
from forge_tools.tools.file.finding import Finding, Found, Wanted
from forge_tools.tools.file.hits import Page
from forge_tools.tools.file.notes import Notes, counted, room_for_records
from forge_tools.validation import clean_text

MAX_EXCLUDED = 50
_SPECIAL = re.compile(r"[\\*?\[{]")
_HINT_SECONDS = 0.3  # for each way to find more, where nothing was found
_KINDS = {"file": ("file", "files"), "directory": ("folder", "folders"), "any": ("path", "paths")}


class Glob(BaseTool):
    """Find files by name in the workspace: src/**/*.py, *.{ts,tsx}; what git ignores is left out, links are not followed.

    Paths are sorted, so that pages fit together. `*` and `?` stay within a name, `**` as a whole name stands for any
    number of folders; `*.py` finds files of the folder itself, `**/*.py` those below it too.
    """

    name = "Glob"
    aliases = ("glob",)
    category = ToolCategory.FILE
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (
        ToolParameter(
            name="pattern",
            type="string",
            description="Pattern for paths relative to path: **/*.py in all folders, *.py in that folder alone.",
            min_length=1,
            max_length=1024,
        ),
        ToolParameter(
            name="path",
            type="string",
            description="Folder to start from, by default the working directory.",
            required=False,
            default=".",
            min_length=1,
            max_length=MAX_PATH_CHARS,
        ),
        ToolParameter(
            name="exclude",
            type="array",
            description="What to leave out, as lines of a .gitignore: node_modules, *.min.js, /dist.",
            required=False,
            items={"type": "string", "minLength": 1, "maxLength": 1024},
        ),
        ToolParameter(
            name="respect_ignore",
            type="boolean",
            description="Leave out what .gitignore and .ignore files name, tracked files excepted.",
            required=False,
            default=True,
        ),
        ToolParameter(
            name="hidden",
            type="boolean",
            description="Find hidden files too; .git is always left out.",
            required=False,
            default=True,
        ),
        ToolParameter(
            name="type",
            type="string",
            description="file: files and links; directory: folders; any: whatever there is.",
            required=False,
            default="file",
            enum=["file", "directory", "any"],
        ),
        ToolParameter(
            name="case_sensitive",
            type="boolean",
            description="Tell upper from lower case.",
            required=False,
            default=True,
        ),
        ToolParameter(
            name="sort",
            type="string",
            description="path: the same order on every host; mtime: newest first.",
            required=False,
            default="path",
            enum=["path", "mtime"],
        ),
        ToolParameter(
            name="limit",
            type="integer",
            description="Paths shown at most.",
            required=False,
            default=1000,
            minimum=1,
            maximum=10_000,
            aliases=("head_limit",),
        ),
        ToolParameter(
            name="offset",
            type="integer",
            description="Paths to skip, to see the next page.",
            required=False,
            default=0,
            minimum=0,
        ),
    )

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        wanted = _relative(Wanted(**options))
        exclude = wanted.exclude or ()
        if len(exclude) > MAX_EXCLUDED:
            raise InvalidCallError(f"exclude has {len(exclude)} globs; the limit is {MAX_EXCLUDED}")
        for glob in (wanted.pattern, *exclude):
            check_text("A glob", glob)
        workspace, deadline, is_cancelled = self.workspace(context), Deadline(context), threading.Event()
        page = Page(offset=wanted.offset, limit=wanted.limit, room=room_for_records(context.max_output_size))

        def find() -> ToolResult:
            with workspace.open_folder(wanted.path) as target:
                finding = Finding(workspace, target, is_cancelled)
                found = finding.run(wanted, deadline)
                result = _result(workspace, target, found, page)
                if not found.paths and not found.is_partial:
                    result.output = " ".join([result.output, *_hints(finding, wanted, context)])
                return result

        try:
            return await asyncio.to_thread(find)
        finally:
            is_cancelled.set()

    async def _dry_run(self, context: ExecutionContext, **options: Any) -> ToolResult:
        result = await self._execute(context, **options)
        if result.success:
            result.output = f"[Dry Run] {result.output}"
        return result

    def _takes_extra(self) -> bool:
        return False  # `**options` only keeps the ten names from being written twice


def _relative(wanted: Wanted) -> Wanted:
    """Take the plain folders off the front of an absolute pattern: they are where to start."""
    if not wanted.pattern.startswith("/"):
        return wanted
    names = [name for name in wanted.pattern.split("/") if name]
    plain = next((index for index, name in enumerate(names) if _SPECIAL.search(name)), len(names) - 1)
    return replace(wanted, path="/" + "/".join(names[: max(plain, 0)]), pattern="/".join(names[max(plain, 0) :]))


def _result(workspace: Workspace, target: Handle, found: Found, page: Page) -> ToolResult:
    inside, unit = workspace.inside(target), _KINDS[found.wanted.type]
    for path in found.paths:
        if not page.add(workspace.shown(path if inside == "." else f"{inside}/{path}", target)):
            break
    warnings = [f"{path}: {reason}" for path, reason in found.faults]
    total = None if found.is_partial else len(found.paths)
    notes = Notes(page=page, unit=unit, total=total, is_partial=found.is_partial, warnings=warnings)
    where = "the working directory" if target.name == "." else target.name
    none = [] if found.paths else [f"No {unit[1]} match '{clean_text(found.wanted.pattern)}' in {where}."]
    return ToolResult.ok("\n".join([*page.records, *notes.lines(), *none]), **notes.facts())


def _hints(finding: Finding, wanted: Wanted, context: ExecutionContext) -> list[str]:
    """Say which wider search would find something."""
    ways: list[tuple[str, Wanted]] = []
    if not wanted.pattern.startswith("**/"):
        deep = f"**/{wanted.pattern}"
        ways.append((f"'{clean_text(deep)}' would match {{}}.", replace(wanted, pattern=deep)))
    if wanted.respect_ignore:
        hidden = "{} hidden by ignore rules (respect_ignore=false shows them)."
        ways.append((hidden, replace(wanted, respect_ignore=False)))
    if wanted.case_sensitive:
        ways.append(("case_sensitive=false would match {}.", replace(wanted, case_sensitive=False)))
    if wanted.type == "file":
        ways.append(("type=directory would match {}.", replace(wanted, type="directory")))
    hints = []
    for sentence, wider in ways:
        deadline = Deadline(context.model_copy(update={"timeout": min(_HINT_SECONDS, context.timeout / 10)}))
        if number := finding.count(wider, deadline):
            hints.append(sentence.format(counted(number, *_KINDS[wider.type])))
    return hints
