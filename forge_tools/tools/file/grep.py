"""Grep: lines, files or counts that match a pattern, searched by ripgrep, with hints if nothing is found."""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.model import ExecutionContext, ToolCategory, ToolResult
from forge_tools.sandbox.artifacts import is_handle, open_artifact
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.processes.commands import Completed, Sink, run
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.tools.builtin import PATH, ReadingTool, counted, option, parameters_of
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.file.globs import check_text
from forge_tools.tools.file.hits import MatchSink, NameSink, Notes, Page, room_for_records
from forge_tools.tools.file.ripgrep import Complaints, File, Folder, Recheck, find_ripgrep, needs_pcre2, refusal
from forge_tools.tools.file.text import visible
from forge_tools.tools.file.walk import Walk

_HINT_SECONDS = (0.05, 0.3)  # a fifth of the search time, within these bounds
_COUNT_SECONDS = 2.0
_COUNTED = 10_000  # lines beyond those of the page; the exact number is not worth a complete search
_GRACE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to search for and how."""

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

    @property
    def has_context(self) -> bool:
        return bool(self.before or self.after or self.context_lines)

    def arguments(self, targets: Sequence[str], *, has_rules: bool, tells_binaries: bool = False) -> list[str]:
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
            "--debug": tells_binaries,
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
    parameters = parameters_of(Search)

    def __init__(self, ripgrep: Path | None = None) -> None:
        self._ripgrep = str(ripgrep) if ripgrep else None

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        search = Search(**options)
        for name in ("pattern", "glob", "type"):
            check_text(name, getattr(search, name) or "")
        return await _Call(find_ripgrep(self._ripgrep), self.workspace(context), context).run(search)


@dataclass(frozen=True, slots=True)
class _Answer:
    sink: NameSink | MatchSink
    completed: Completed
    complaints: Complaints
    lost: list[str]

    @property
    def is_whole(self) -> bool:
        """Whether the result is complete."""
        return not (self.completed.stopped or self.completed.timed_out) and self.sink.is_sure


class _Total(NamedTuple):
    """All matching lines and their files; without `is_all`, a minimum."""

    matches: int
    files: int
    is_all: bool = True


class _Call:
    """Runs one search and describes its result."""

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
            if search.engine == "auto" and needs_pcre2(answer.complaints.text):
                search = replace(search, engine="pcre2")
                answer = await self._answer(search, place, self._deadline.remaining)
            if not answer.sink.page.seen and not answer.completed.timed_out:
                _raise(refusal(search.pattern, search.type, answer.complaints.text))
                return await self._nothing(search, target, place, answer)
            return _result(search, place, answer, await self._total(search, place, answer))

    async def _target(self, path: str) -> Handle:
        if is_handle(path):
            return await open_artifact(path, self._context, self._workspace)
        return self._workspace.open(path)

    async def _place(self, search: Search, target: Handle, deadline: Deadline) -> Folder:
        """Decide what to leave out. An ignored or hidden target was named explicitly, so only its own rules apply."""
        choices = {"respect_ignore": search.respect_ignore, "hidden": search.hidden}
        walk = Walk(self._workspace, target, deadline, **choices, keeps_sightings=True)
        return await deadline.look(
            lambda: Folder(self._workspace, target, walk, glob=search.glob, hidden=search.hidden)
        )

    async def _answer(
        self, search: Search, place: File | Folder, seconds: float, *, enough: int = sys.maxsize
    ) -> _Answer:
        page = Page(offset=search.offset, limit=search.head_limit, room=room_for_records(self._context.max_output_size))
        sink, complaints = _sink(search, page, place, enough=enough), Complaints(place.shown)
        told = {"has_rules": bool(place.rules), "tells_binaries": place.tells_binaries}
        arguments = search.arguments([place.target], **told)
        completed = await self._ripgrep(
            arguments, place, seconds, stdout=sink.feed, stderr=complaints.feed, stdin=place.stdin()
        )
        lost = await self._recheck(search, place, sink, complaints) if isinstance(place, Folder) else []
        sink.finish()
        if completed.signal is not None:
            what = "The search program was killed; the answer would be incomplete. Try again"
            raise SandboxError(what, ErrorCode.TOOL_ERROR)
        return _Answer(sink, completed, complaints, lost)

    async def _ripgrep(
        self, arguments: list[str], place: File | Folder, seconds: float, *, stdout: Sink, stderr: Sink, stdin: bytes | int
    ) -> Completed:  # fmt: skip
        """Run the program. Everything is passed as an argument, so no pattern or path is taken for an option."""
        return await run(
            [self._program, *arguments],
            folder=place.folder,
            environment=child_environment(),
            timeout=seconds,
            stdout=stdout,
            stderr=stderr,
            stdin=stdin,
            grace=_GRACE_SECONDS,
        )

    async def _recheck(
        self, search: Search, place: Folder, sink: NameSink | MatchSink, complaints: Complaints
    ) -> list[str]:
        """Drop what the program may have seen outside: it opens by path, and folders may have been swapped meanwhile."""
        changes = await asyncio.to_thread(place.changes)
        if not changes:
            return []

        async def again(paths: Sequence[str], sink: NameSink) -> None:
            arguments = search.arguments(paths, has_rules=False)
            left = self._deadline.remaining
            await self._ripgrep(arguments, place, left, stdout=sink.feed, stderr=lambda _: None, stdin=b"")

        recheck = Recheck(place, changes)
        complaints.leave_out(recheck.is_unsure)
        await (recheck.lines(sink) if isinstance(sink, MatchSink) else recheck.names(sink, again))
        return recheck.warnings()

    async def _total(self, search: Search, place: File | Folder, answer: _Answer) -> _Total | None:
        """Count the matches, if need be by a second search that stops soon after the page; None if there is no time."""
        if not answer.completed.stopped or not answer.sink.is_sure:
            return _Total(answer.sink.matches, answer.sink.files) if answer.is_whole else None
        counting = replace(search, output_mode="count", offset=0, head_limit=1)
        enough = sys.maxsize if isinstance(place, File) else (answer.sink.page.seen // _COUNTED + 1) * _COUNTED
        seconds = min(_COUNT_SECONDS, self._deadline.remaining)
        answer = await self._answer(counting, place, seconds, enough=enough)
        if answer.sink.is_sure and answer.sink.matches >= enough:
            return _Total(enough, 0, is_all=False)
        return _Total(answer.sink.matches, answer.sink.files) if answer.is_whole else None

    async def _nothing(self, search: Search, target: Handle, place: File | Folder, answer: _Answer) -> ToolResult:
        """Report that nothing matches, and after a quick probe whether a wider search would find something."""
        result = _result(search, place, answer, _Total(0, 0) if answer.sink.is_sure else None)
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
        least, most = _HINT_SECONDS
        seconds = min(most, max(least, (time.monotonic() - self._started) / 5), self._deadline.remaining)
        started = time.monotonic()
        if not wider.respect_ignore and target.is_folder:
            place = await self._place(wider, target, self._deadline.within(seconds))
        probe = replace(wider, output_mode="files_with_matches", head_limit=1, offset=0)
        left = max(0.0, seconds - (time.monotonic() - started))
        return bool((await self._answer(probe, place, left, enough=1)).sink.files)


def _sink(search: Search, page: Page, place: File | Folder, *, enough: int) -> NameSink | MatchSink:
    if search.output_mode != "content":
        has_counts = search.output_mode == "count"
        return NameSink(page, place.wanted, place.shown, has_counts=has_counts, enough=enough)
    width, has_numbers, has_context = search.max_columns, search.line_numbers, search.has_context
    return MatchSink(
        page, place.wanted, place.shown, max_columns=width, has_numbers=has_numbers, has_context=has_context
    )


def _result(search: Search, place: File | Folder, answer: _Answer, total: _Total | None) -> ToolResult:
    page, told = answer.sink.page, answer.complaints
    notes = Notes(
        page=page,
        unit="file" if search.output_mode != "content" else "record",
        total=_records(search, answer, total),
        in_all=_in_all(search, total),
        is_partial=answer.completed.timed_out or place.is_partial,
        warnings=[*dict.fromkeys([*place.warnings(), *answer.lost, *told.warnings()])],
    )
    is_whole = not answer.completed.stopped  # else the number reported so far depends on timing
    facts = notes.facts() | {"engine": "rust" if search.engine == "auto" else search.engine}
    facts |= place.facts(told.binary_files if is_whole else 0, told.binaries if is_whole else [])
    facts |= _counts(search, total) if total else {}
    if isinstance(answer.sink, MatchSink):
        facts |= {"not_utf8": answer.sink.not_utf8} if answer.sink.not_utf8 else {}
        facts |= {} if answer.sink.bytes_read is None else {"bytes_read": answer.sink.bytes_read}
    searched = _searched(place, answer)
    if searched is not None:
        facts["files_searched"] = searched
    if isinstance(place, File):
        facts["files_accessed"] = [place.file.name]
    return ToolResult.ok("\n".join([*page.records, *notes.lines(), *_left_out(facts)]), **facts)


def _searched(place: File | Folder, answer: _Answer) -> int | None:
    """Return how many files were searched: the program's count, else what was offered to it; None if it ended early."""
    if answer.sink.searched is not None or not answer.is_whole:
        return answer.sink.searched
    return place.searched(answer.complaints.paths())


def _records(search: Search, answer: _Answer, total: _Total | None) -> int | None:
    """Return the total number of records, if known."""
    if total is None or not total.is_all:
        return None
    if search.output_mode != "content":
        return total.files
    if not answer.completed.stopped:
        return answer.sink.page.seen
    return None if search.has_context or search.multiline else total.matches


def _counts(search: Search, total: _Total) -> dict[str, int]:
    if not total.is_all:
        return {"matching_lines_at_least": total.matches}
    lines = {} if search.output_mode == "files_with_matches" else {"matching_lines": total.matches}
    return {"matching_files": total.files} | lines


def _in_all(search: Search, total: _Total | None) -> str | None:
    if search.output_mode != "content" or total is None:
        return None
    around = "what is around " if search.has_context else ""
    if not total.is_all:
        return f"{around}{total.matches:,} or more matching lines"
    return f"{around}{counted(total.matches, 'matching line')} in {counted(total.files, 'file')}"


def _left_out(facts: dict[str, Any]) -> list[str]:
    parts = []
    if binary := facts.get("binary_files"):
        parts.append(counted(binary, "binary file"))
    if named := facts.get("binary_names"):
        parts.append(f"about {counted(named, 'binary file')}, going by names")
    if secret := facts.get("protected"):
        parts.append(f"{secret:,} that may hold secrets")
    notes = [f"[left out: {', '.join(parts)}]"] if parts else []
    if strange := facts.get("not_utf8"):
        notes.append(f"[{counted(strange, 'line is', 'lines are')} not UTF-8, shown as Latin-1]")
    return notes


def _raise(error: SandboxError | None) -> None:
    """Raise an error without keeping it in this frame: the cycle would keep the workspace alive."""
    try:
        if error is not None:
            raise error
    finally:
        del error
