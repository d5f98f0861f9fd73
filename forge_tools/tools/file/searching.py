"""One search: where ripgrep runs, what of its answer was asked for, and what to say when there is none."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.records import ToolResult
from forge_tools.sandbox.environment import child_environment
from forge_tools.sandbox.paths import Handle, Workspace
from forge_tools.sandbox.process import Completed, run
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.file.globs import compile_glob, ignore_rules
from forge_tools.tools.file.hits import MatchSink, NameSink, Page, Shown
from forge_tools.tools.file.ripgrep import Search, needs_pcre2, refusal, warnings
from forge_tools.tools.file.text import visible

_NOTE_ROOM = 200  # characters of the output kept free for what is said after the records
_MAX_STDERR = 65_536
_MAX_WARNING = 100
_HINT_SECONDS = (0.05, 0.3)  # a fifth of what the search took, within these
_GRACE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Answer:
    page: Page
    searched: int | None
    completed: Completed
    stderr: str


class Searching:
    """Runs one search and words its result."""

    def __init__(self, program: str, workspace: Workspace, deadline: Deadline, max_chars: int) -> None:
        self._program = program
        self._workspace = workspace
        self._deadline = deadline
        self._room = max(1, max_chars - _NOTE_ROOM)
        self._started = time.monotonic()

    async def run(self, search: Search) -> ToolResult:
        """Search, with PCRE2 where the pattern turns out to need it."""
        with self._workspace.open(search.path) as target:
            answer = await self._answer(search, target)
            if search.engine == "auto" and needs_pcre2(answer.stderr):
                search = replace(search, engine="pcre2")
                answer = await self._answer(search, target)
            if answer.page.seen or answer.completed.timed_out:
                return self._result(search, answer)
            if refused := refusal(search, answer.stderr):
                raise refused
            return await self._nothing(search, target, answer)

    async def _answer(self, search: Search, target: Handle, seconds: float | None = None) -> _Answer:
        """Search a file by its handle, a folder from the root down so that every rule of the workspace counts."""
        seconds = self._deadline.remaining if seconds is None else seconds
        with self._workspace.open_root() as root:
            if not target.is_folder:
                return await self._ripgrep(search, _File(root, target), seconds)
            inside = self._workspace.inside(target)
            answer = await self._ripgrep(search, _Folder(root, inside, self._workspace.shown, search.glob), seconds)
            is_empty = not answer.page.seen and not answer.completed.timed_out and not answer.stderr
            if inside != "." and is_empty and not await self._is_reached(search, root, inside, seconds):
                # The folder itself is ignored or hidden, but it was named: it is searched by its own rules.
                place = _Folder(target, ".", lambda path: self._workspace.shown(f"{inside}/{path}"), search.glob)
                answer = await self._ripgrep(search, place, seconds)
            return answer

    async def _is_reached(self, search: Search, root: Handle, inside: str, seconds: float) -> bool:
        """Whether ripgrep, coming from the root, looks into any file of the folder."""
        place = _Folder(root, inside, self._workspace.shown, None)
        page = Page(offset=0, limit=1, room=1)
        sink = NameSink(page, place.shown, has_counts=False)
        await run(
            [self._program, *search.listing()],
            folder=place.folder,
            environment=child_environment(),
            timeout=seconds,
            stdout=lambda data: sink.feed(data) and not page.seen,
            stderr=bool,
            stdin=place.stdin,
            grace=_GRACE_SECONDS,
        )
        return bool(page.seen)

    async def _ripgrep(self, search: Search, place: "_File | _Folder", seconds: float) -> _Answer:
        page = Page(offset=search.offset, limit=search.head_limit, room=self._room)
        sink = _sink(search, page, place.shown)
        stderr = bytearray()

        def complain(data: bytes) -> bool:
            stderr.extend(data[: _MAX_STDERR - len(stderr)])
            return True

        completed = await run(
            [self._program, *search.arguments(has_rules=bool(place.rules), is_file=isinstance(place, _File))],
            folder=place.folder,
            environment=child_environment(),
            timeout=seconds,
            stdout=sink.feed,
            stderr=complain,
            stdin=place.stdin,
            grace=_GRACE_SECONDS,
        )
        sink.finish()
        if completed.signal is not None:
            raise SandboxError(
                "The search program was killed; the answer would be incomplete. Try again", ErrorCode.TOOL_ERROR
            )
        # A rule of a .gitignore may have brought in files that the page does not want: then the number says nothing.
        searched = None if place.rules else sink.searched
        return _Answer(page, searched, completed, stderr.decode("utf-8", "replace"))

    def _result(self, search: Search, answer: _Answer) -> ToolResult:
        page = answer.page
        facts: dict[str, Any] = {
            "shown_records": len(page.records),
            "truncated": page.has_more,
            "engine": search.engine,
        }
        notes = []
        if page.has_more:
            facts["next"] = page.next
            notes.append(f"[more follows; continue with offset={page.seen}]")
        if answer.completed.timed_out:
            facts["partial"] = True
            notes.append("[stopped early: the time for this call was over]")
        if problems := warnings(answer.stderr, search.path):
            facts["warnings"] = problems
            notes.append(f"[not searched: {problems[0][:_MAX_WARNING]}{' and more' if len(problems) > 1 else ''}]")
        if page.seen and not page.records:
            notes.append(f"[nothing after offset {search.offset}: there are {page.seen:,} records]")
        if answer.searched is not None:
            facts["files_searched"] = answer.searched
        return ToolResult.ok("\n".join([*page.records, *notes]), **facts)

    async def _nothing(self, search: Search, target: Handle, answer: _Answer) -> ToolResult:
        """Say that nothing matches, and cheaply whether a wider search would find something."""
        result = self._result(search, answer)
        many = "" if answer.searched is None else f" ({_files(answer.searched)} searched)"
        text = f"No matches for '{visible(search.pattern[:100])}' in {target.name}{many}."
        ways = {"ignore_case": True} if not search.ignore_case else {}
        ways |= {"respect_ignore": False} if search.respect_ignore and target.is_folder else {}
        if ways:
            wider = replace(search, **ways, output_mode="files_with_matches", head_limit=1, offset=0)  # type: ignore[arg-type]  # replace() wants one type for all values
            found = await self._answer(wider, target, self._hint_seconds())
            if found.page.records:
                text += f" There are some with {' or '.join(f'{k}={str(v).lower()}' for k, v in ways.items())}."
        result.output = "\n".join(part for part in (text, result.output) if part)
        return result

    def _hint_seconds(self) -> float:
        least, most = _HINT_SECONDS
        return min(most, max(least, (time.monotonic() - self._started) / 5), self._deadline.remaining)


class _File:
    """A single file, which ripgrep reads from standard input: no path is looked up a second time."""

    rules = ""

    def __init__(self, folder: Handle, file: Handle) -> None:
        os.lseek(file.fd, 0, os.SEEK_SET)  # a search before this one may have read it
        self.folder = folder.fd
        self.stdin = file.fd
        self.shown: Shown = lambda _: file.name


class _Folder:
    """A folder handle to start in, and of what is below it the part that was asked for."""

    def __init__(self, handle: Handle, inside: str, shown: Callable[[str], str], glob: str | None) -> None:
        self.folder = handle.fd
        self.rules = ignore_rules(inside, glob)
        self.stdin = os.fsencode(self.rules)
        self._above = "" if inside == "." else f"{inside}/"
        self._glob = compile_glob(glob) if glob else None
        self._shown = shown

    def shown(self, path: str) -> str | None:
        path = path.removeprefix("./")
        if not path.startswith(self._above):
            return None
        if self._glob and not self._glob.fullmatch(path[len(self._above) :]):
            return None
        return self._shown(path)


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number:,} files"


def _sink(search: Search, page: Page, shown: Shown) -> NameSink | MatchSink:
    if search.output_mode != "content":
        return NameSink(page, shown, has_counts=search.output_mode == "count")
    return MatchSink(
        page,
        shown,
        max_columns=search.max_columns,
        has_numbers=search.line_numbers,
        has_context=search.has_context,
    )
