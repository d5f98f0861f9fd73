"""Grep: lines, files or counts that match a pattern, searched by ripgrep, with hints if nothing is found."""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.model import ExecutionContext, ToolCategory, ToolResult
from forge_tools.model.artifacts import SCHEME
from forge_tools.sandbox.artifacts import open_artifact
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.folders import Changes
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.processes.commands import Completed
from forge_tools.tools.builtin import PATH, Deadline, Page, ReadingTool, check_text, counted, option, room_for_records
from forge_tools.tools.file.ripgrep import (
    File,
    Folder,
    MatchSink,
    Named,
    NameSink,
    complaints_of,
    find_ripgrep,
    needs_pcre2,
    require_searched,
    run_ripgrep,
)
from forge_tools.tools.file.text import visible
from forge_tools.tools.file.walk import Walk

HINT_SECONDS = (0.05, 0.3)
"""How long to look for what else would match: a fifth of the search time, within these bounds."""

_OPEN_FILES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    pattern: str = option("Regular expression to search for.", min_length=1, max_length=4096)
    path: str = option(
        "File or folder to search, by default the working directory; or artifact://..., a long output.",
        ".", aliases=("file_path",), **PATH,
    )  # fmt: skip
    glob: str | None = option(
        "Only files that match, relative to path: *.py (in every folder), src/**/*.{ts,tsx}.",
        None, min_length=1, max_length=1024,
    )  # fmt: skip
    type: str | None = option("Only files of this ripgrep type: py, ts, rust, ...", None, min_length=1, max_length=64)
    output_mode: Literal["content", "files_with_matches", "count"] = option(
        "content: path:line:text; files_with_matches: paths; count: path:matching lines.", "files_with_matches"
    )
    ignore_case: bool = option("Ignore case.", default=False, aliases=("-i",))
    before: int = option("Lines shown before each match (content).", 0, minimum=0, maximum=50, aliases=("-B",))
    after: int = option("Lines shown after each match (content).", 0, minimum=0, maximum=50, aliases=("-A",))
    context_lines: int = option(
        "Lines shown around each match (content).", 0, minimum=0, maximum=50, aliases=("-C", "context")
    )
    line_numbers: bool = option("Show line numbers (content).", default=True, aliases=("-n",))
    multiline: bool = option("Let patterns span lines, and let the dot match line ends.", default=False)
    fixed_strings: bool = option("Search for the pattern as plain text.", default=False, aliases=("-F",))
    word: bool = option("Match whole words only.", default=False, aliases=("-w",))
    engine: Literal["auto", "rust", "pcre2"] = option(
        "auto: rust, or pcre2 if the pattern needs look-around or back-references.", "auto"
    )
    max_per_file: int | None = option(
        "Maximum number of matching lines per file.", None, minimum=1, maximum=1_000_000_000, aliases=("-m",)
    )
    head_limit: int = option("Maximum number of records (lines or files) shown.", 250, minimum=1, maximum=5000)
    offset: int = option("Records to skip, to see the next page.", 0, minimum=0)
    respect_ignore: bool = option("Leave out what .gitignore and .ignore files name.", default=True)
    hidden: bool = option("Search hidden files too; .git is always left out.", default=True)
    max_columns: int = option("Longer lines are cut around the match.", 500, minimum=20, maximum=10_000)

    def arguments(self, targets: Sequence[str], *, has_rules: bool) -> list[str]:
        """Build the arguments for the program: only our rules decide what to leave out, no file on this host."""
        options = {
            "--ignore-case": self.ignore_case,
            "--multiline": self.multiline,
            "--multiline-dotall": self.multiline,
            "--fixed-strings": self.fixed_strings,
            "--word-regexp": self.word,
            "--pcre2": self.engine == "pcre2",
            "--hidden": self.hidden,
            f"--type={self.type}": self.type is not None,
            f"--max-count={self.max_per_file}": self.max_per_file is not None,
            "--ignore-file=/dev/stdin": has_rules,
        }
        chosen = [name for name, is_on in options.items() if is_on]
        fixed = ["--no-config", "--crlf", "--no-ignore", "--glob=!.git"]
        return [*fixed, *self._mode(), *chosen, "-e", self.pattern, "--", *targets]

    def _mode(self) -> list[str]:
        if self.output_mode == "content":
            before, after = self.before or self.context_lines, self.after or self.context_lines
            return ["--sort=path", "--json", f"--before-context={before}", f"--after-context={after}"]
        which = "--files-with-matches" if self.output_mode == "files_with_matches" else "--count"
        # With statistics, a file is not left at its first match. What is searched is known unless these choose.
        return [which, "--with-filename", "--null", *(["--stats"] if self.type or self.glob else [])]


class Grep(ReadingTool):
    """Search files in the workspace for a regular expression (Rust syntax); .gitignore is honoured, binary files are skipped.

    Results are sorted by path, so that pages are consistent.
    """

    name = "Grep"
    aliases = ("grep",)
    category = ToolCategory.FILE
    options = Search

    def __init__(self, ripgrep: Path | None = None) -> None:
        self._ripgrep = str(ripgrep) if ripgrep else None

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        search = Search(**options)
        for name in ("pattern", "glob", "type"):
            check_text(name, getattr(search, name) or "")
        return await _Call(find_ripgrep(self._ripgrep), self.workspace(context), context).run(search)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one search found. `failed` could not be searched; without `is_sure`, more may have been found than is told."""

    sink: NameSink | MatchSink
    completed: Completed
    stderr: str
    warnings: list[str]
    failed: list[str]
    is_sure: bool

    @property
    def is_whole(self) -> bool:
        return not (self.completed.stopped or self.completed.timed_out) and self.is_sure


class _Call:
    def __init__(self, program: str, workspace: Workspace, context: ExecutionContext) -> None:
        self._program = program
        self._workspace = workspace
        self._deadline = Deadline(context.timeout)
        self._context = context
        self._started = time.monotonic()

    async def run(self, search: Search) -> ToolResult:
        """Search, with PCRE2 if the pattern turns out to need it."""
        with await self._target(search.path) as target, self._workspace.open_root(target) as root:
            file = None if target.is_folder else File(target, root)
            place = file or await self._place(search, target, self._deadline)
            answer = await self._answer(search, place, self._deadline.remaining)
            if search.engine == "auto" and needs_pcre2(answer.stderr):
                search = replace(search, engine="pcre2")
                answer = await self._answer(search, place, self._deadline.remaining)
            if not answer.sink.page.seen and not answer.completed.timed_out:
                require_searched(search.pattern, search.type, answer.stderr)
                return await self._nothing(search, target, place, answer)
            return _result(search, place, answer)

    async def _target(self, path: str) -> Handle:
        if path.startswith(SCHEME):
            return await open_artifact(path, self._context, self._workspace)
        return self._workspace.open(path)

    async def _place(self, search: Search, target: Handle, deadline: Deadline) -> Folder:
        """Decide what to leave out. An ignored or hidden target was named explicitly, so only its own rules apply."""
        choices = {"respect_ignore": search.respect_ignore, "hidden": search.hidden}
        walk = Walk(self._workspace, target, deadline, **choices, keeps_sightings=True)
        return await deadline.look(lambda: Folder(target, walk, glob=search.glob, hidden=search.hidden))

    async def _answer(
        self, search: Search, place: File | Folder, seconds: float, *, enough: int = sys.maxsize
    ) -> _Answer:
        sink = self._sink(search, place, place.named, enough)
        command = [self._program, *search.arguments([place.target], has_rules=bool(place.rules))]
        completed, text = await run_ripgrep(command, place.folder, seconds, place.stdin(), sink.feed)
        if completed.signal is not None:
            what = "The search program was killed; the answer would be incomplete. Try again"
            raise SandboxError(what, ErrorCode.TOOL_ERROR)
        changes, lost = None, list[str]()
        if isinstance(place, Folder) and (changes := await asyncio.to_thread(Changes, place.walk.seen, place.folder)):
            sink, lost = await self._again(search, place, changes, sink)
        sink.finish()
        if changes:
            sink.searched = sink.bytes_read = None
        warnings, failed = complaints_of(text, place.shown, changes or None)
        return _Answer(sink, completed, text, [*lost, *warnings], failed, not changes)

    def _sink(
        self, search: Search, place: File | Folder, named: Named, enough: int = sys.maxsize
    ) -> NameSink | MatchSink:
        page = Page(offset=search.offset, limit=search.head_limit, room=room_for_records(self._context.max_output_size))
        if search.output_mode != "content":
            has_counts = search.output_mode == "count"
            return NameSink(page, named, place.shown, has_counts=has_counts, enough=enough)
        has_context = bool(search.before or search.after or search.context_lines)
        columns, has_numbers = search.max_columns, search.line_numbers
        return MatchSink(
            page, named, place.shown, max_columns=columns, has_numbers=has_numbers, has_context=has_context
        )

    async def _again(
        self, search: Search, place: Folder, changes: Changes, seen: NameSink | MatchSink
    ) -> tuple[NameSink | MatchSink, list[str]]:
        """Search the files that were found once more, each opened by us; return also warnings about what is lost.

        The program opens by path, and folders that changed meanwhile may have led it outside.
        """
        names, links, lost = seen.names, dict[str, str](), dict[str, None]()
        if all(changes.above(name) is None for name in names):
            return seen, []
        sink, search = self._sink(search, place, links.get), replace(search, type=None, glob=None)
        for start in range(0, len(names), _OPEN_FILES):
            with ExitStack() as stack:
                some = names[start : start + _OPEN_FILES]
                opened = [(name, stack.enter_context(handle)) for name in some if (handle := place.walk.open(name))]
                links.clear()
                links.update((handle.link, name) for name, handle in opened)
                if links:
                    command = [self._program, *search.arguments([*links], has_rules=False)]
                    await run_ripgrep(command, place.folder, self._deadline.remaining, b"", sink.feed)
            if sink.page.has_more:
                break
            found = set(sink.names)
            lost |= dict.fromkeys(name.rpartition("/")[0] for name in some if name not in found)
        sink.page.has_more = sink.page.has_more or seen.page.has_more
        return sink, [f"{place.shown(folder or '.')}: changed while it was searched" for folder in lost]

    async def _nothing(self, search: Search, target: Handle, place: File | Folder, answer: _Answer) -> ToolResult:
        """Report that nothing matches, and after a quick probe whether a wider search would find something."""
        result = _result(search, place, answer)
        searched = _searched(place, answer)
        many = "" if searched is None else f" ({counted(searched, 'file')} searched)"
        where = "the working directory" if target.name == "." else target.name
        text = f"No matches for '{visible(search.pattern[:100])}' in {where}{many}."
        has_case = search.pattern.lower() != search.pattern.upper()
        ways: dict[str, Any] = {"ignore_case": True} if has_case and not search.ignore_case else {}
        ways |= {"respect_ignore": False} if place.has_ignored else {}
        if ways and await self._is_found(replace(search, **ways), target, place):
            text += f" There are some with {' or '.join(f'{k}={str(v).lower()}' for k, v in ways.items())}."
        result.output = "\n".join(part for part in (text, result.output) if part)
        return result

    async def _is_found(self, wider: Search, target: Handle, place: File | Folder) -> bool:
        least, most = HINT_SECONDS
        seconds = min(most, max(least, (time.monotonic() - self._started) / 5), self._deadline.remaining)
        started = time.monotonic()
        if not wider.respect_ignore and target.is_folder:
            place = await self._place(wider, target, self._deadline.within(seconds))
        probe = replace(wider, output_mode="files_with_matches", head_limit=1, offset=0)
        left = max(0.0, seconds - (time.monotonic() - started))
        return bool((await self._answer(probe, place, left, enough=1)).sink.files)


def _result(search: Search, place: File | Folder, answer: _Answer) -> ToolResult:
    sink, is_by_lines = answer.sink, search.output_mode == "content"
    notes, facts = sink.page.notes(
        "record" if is_by_lines else "file",
        total=None if not answer.is_whole else sink.page.seen if is_by_lines else sink.files,
        is_partial=answer.completed.timed_out or place.is_partial,
        warnings=[*dict.fromkeys([*place.faults, *answer.warnings])],
    )
    facts |= {"engine": "rust" if search.engine == "auto" else search.engine}
    if place.protected:
        facts["protected"] = place.protected
        notes.append(f"[left out: {place.protected:,} that may hold secrets]")
    if sink.not_utf8:
        facts["not_utf8"] = sink.not_utf8
        notes.append(f"[{counted(sink.not_utf8, 'line is', 'lines are')} not UTF-8, shown as Latin-1]")
    if answer.is_whole:
        facts["matching_files"] = sink.files
        facts |= {} if search.output_mode == "files_with_matches" else {"matching_lines": sink.matches}
    facts |= {} if sink.bytes_read is None else {"bytes_read": sink.bytes_read}
    if (searched := _searched(place, answer)) is not None:
        facts["files_searched"] = searched
    if isinstance(place, File):
        facts["files_accessed"] = [place.file.name]
    return ToolResult.ok("\n".join([*sink.page.records, *notes]), **facts)


def _searched(place: File | Folder, answer: _Answer) -> int | None:
    """Return how many files were searched: the program's count, else what was offered to it; None if it ended early."""
    if answer.sink.searched is not None or not answer.is_whole:
        return answer.sink.searched
    return place.searched(answer.failed)
