"""BashOutput: the output of a background shell, as pages of lines that can be read, awaited and searched."""

import asyncio
import codecs
import re
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.model import ExecutionContext, ToolCategory, ToolResult
from forge_tools.model.places import ShellRecord, ShellStatus
from forge_tools.sandbox.processes.streams import is_plain, plain
from forge_tools.sandbox.shells.folder import Output, Piece, ShellFolder
from forge_tools.tools.builtin import Deadline, ReadingTool, option
from forge_tools.tools.execution.shells import HANDLE, Shells, facts_of, state_of
from forge_tools.tools.file.ripgrep import find_ripgrep, require_searched, run_ripgrep

_NOTES_ROOM = 500
_MAX_SHOWN_LINE = 200
_WAIT_FOR_MS = 30_000
_MAX_POSITION = 1 << 62
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_SEARCH_EVERY = 0.05  # seconds between two starts of a search program, each of which costs milliseconds
_MIN_READ = 64 << 10
_MAX_READ = 1 << 20
_MAX_TAIL = 8 << 20
MAX_SEARCH_SECONDS = 10.0
_NUMBER = re.compile(rb"^(\d+):", re.MULTILINE)
_SPECIAL = frozenset("\\.+*?()|[]{}^$")
# Parts of an expression that look like a line break but are none; and those that are.
_HARMLESS = re.compile(r"\\[^n]|\[(?:\\.|[^\]\\])+\]", re.DOTALL)
_LINE_BREAKS = ("\n", "\\n")
_LONGEST_CHARACTER = 4  # bytes: with less, a page might hold no character and never advance
_LONGEST_ESCAPE = 256
_UNFINISHED_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]*|[ -/]*)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    bash_id: str = option("The id that Bash gave when it started the shell.", aliases=("shell_id",), **HANDLE)
    since: int | None = option(
        "Read from this byte on: next_cursor of the previous answer. Default: the last since you gave, or 0.",
        None, minimum=0, maximum=_MAX_POSITION,
    )  # fmt: skip
    filter: str | None = option(
        "Show only lines that match this regular expression (Rust syntax).", None, min_length=1, max_length=4096
    )
    wait_ms: int = option(
        "Wait this many milliseconds for output after since, or for the shell to end.", 0, minimum=0, maximum=60_000
    )
    wait_for: str | None = option(
        "Wait until a line after since matches this regular expression; 30 s if wait_ms is 0.",
        None, min_length=1, max_length=4096,
    )  # fmt: skip
    tail_lines: int | None = option("Show only this many lines, from the end.", None, minimum=1, maximum=5000)


class BashOutput(ReadingTool):
    """Read the output of a background shell; optionally wait for more, or for a line.

    The same call returns the same lines again: only a new `since` moves on, so a lost answer loses no output.
    """

    name = "BashOutput"
    aliases = ("bash_output",)
    category = ToolCategory.EXECUTION
    walls = "namespace"
    options = Reading

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        asked, shells = Reading(**options), Shells(context)
        shell = shells.open(asked.bash_id)
        if shell is None:
            raise await shells.refusal(asked.bash_id)
        with shell:
            if not context.dry_run:
                shell.renew()
                if asked.since is not None:
                    shell.keep_cursor(context.agent_id, asked.since)
            begin = shell.cursor(context.agent_id) if asked.since is None else asked.since
            reader = ShellReader(shell, context)
            facts: dict[str, Any] = {}
            if asked.wait_ms or asked.wait_for:
                awaited = Pattern(asked.wait_for, shell.fd) if asked.wait_for else None
                line = await reader.wait(begin, (asked.wait_ms or _WAIT_FOR_MS) / 1000, awaited)
                if asked.wait_for:
                    facts = {"matched": line is not None, "matched_line": line, "searched_to": reader.left_at}
            record = await reader.status()
            room = max(1, context.max_output_size - min(_NOTES_ROOM, context.max_output_size // 2))
            chosen = Pattern(asked.filter, shell.fd) if asked.filter else None
            if asked.tail_lines is None:
                page = await reader.page(begin, room, chosen)
            else:
                page = await reader.tail(begin, room, asked.tail_lines, chosen)
            return _answer(shell, record, begin, page, facts)


class Line(NamedTuple):
    """A line as people read it, with its end, if any, and its bytes in the stream; with `is_gap` they are not kept."""

    start: int
    end: int
    text: str
    is_gap: bool = False


@dataclass(slots=True)
class Page:
    """Consecutive lines. `next` is where to continue: after what was examined, or where the room ended."""

    next: int
    lines: list[Line] = field(default_factory=list)
    has_more: bool = False

    @property
    def text(self) -> str:
        return "".join(line.text for line in self.lines)

    @property
    def dropped(self) -> int:
        return sum(line.end - line.start for line in self.lines if line.is_gap)


def read_page(output: Output, since: int, limit: int, size: int, *, is_over: bool, room: int = 0) -> Page:
    """Read from a position on, in a stream of that size. An incomplete end waits, unless no more can come.

    Plain lines that all fit into `room` characters may be returned as one: that saves most of the time of a page.
    """
    pieces = output.read(since, limit)
    has_all = sum(len(piece.data) for piece in pieces) < limit
    end = max(size, pieces[-1].end if pieces else 0) if has_all else pieces[-1].end
    found = Page(max(end, min(since, size)), has_more=not has_all and end < size)
    at = since
    if pieces and pieces[-1].end == end and (found.has_more or not is_over):
        pieces[-1] = _whole(pieces[-1], can_wait=not found.has_more)
        found.next = end = pieces[-1].end
    for piece in [*pieces, Piece(end, b"")]:
        if piece.start > at:
            text = f"[{piece.start - at:,} bytes are no longer kept]\n"
            found.lines.append(Line(at, piece.start, text, is_gap=True))
        at = piece.end
        found.lines += _lines(piece, 0 if found.has_more else room)
    if found.has_more and len(found.lines) > 1 and not found.lines[-1].text.endswith("\n"):
        found.next = found.lines.pop().start  # the next page has the rest of the line
    return found


def fitting(lines: Sequence[Line], room: int) -> int:
    """Count how many lines, from the first on, fit into the room."""
    return bisect_right(list(accumulate(len(line.text) for line in lines)), room)


def head_of(line: Line, output: Output, room: int) -> Line:
    """Return the part of a line that fits into the room; the rest begins where it ends."""
    pieces = output.read(line.start, min(max(room, _LONGEST_CHARACTER), line.end - line.start))
    if not pieces or pieces[0].start != line.start:
        return line._replace(text=line.text[:room])
    return _lines(_whole(pieces[0], can_wait=False))[0]


class Pattern:
    """A regular expression in ripgrep's syntax, searched in an open `folder` by a program that can be stopped."""

    def __init__(self, text: str, folder: int) -> None:
        self._text = text
        self._folder = folder
        self.is_plain = not _SPECIAL & set(text) and "\n" not in text

    async def matches(self, lines: Sequence[Line], seconds: float) -> list[int]:
        if any(wanted in _HARMLESS.sub("", self._text) for wanted in _LINE_BREAKS):
            what = f"Invalid pattern, lines are searched one by one and contain no line break: {self._text[:200]}"
            raise SandboxError(what, "INVALID_REGEX")
        if self.is_plain:
            return [index for index, line in enumerate(lines) if self._text in line.text]
        found, limit = bytearray(), min(seconds, MAX_SEARCH_SECONDS)
        # Only the numbers of matching lines are read: `--max-columns=1` keeps the lines out of the output.
        options = ("--no-config", "--text", "--engine=auto", "--line-number", "--max-columns=1", "--color=never")
        texts = (line.text if line.text.endswith("\n") else f"{line.text}\n" for line in lines)
        command, text = [find_ripgrep(), *options, "-e", self._text, "-"], "".join(texts).encode("utf-8", "replace")
        completed, said = await run_ripgrep(command, self._folder, limit, text, found.extend)
        if completed.timed_out:
            raise SandboxError(f"Searching for {self._text[:200]} took more than {limit:.2g}s", ErrorCode.TIMEOUT)
        if completed.exit_code not in (0, 1):
            try:
                require_searched(self._text, None, said)
            except SandboxError as refused:
                raise SandboxError(refused.message.partition(" (to search")[0], refused.code) from None
            raise SandboxError(f"Searching for {self._text[:200]} failed: {said.strip()[:200]}", "INVALID_REGEX")
        return [int(number[1]) - 1 for number in _NUMBER.finditer(found)]


class ShellReader:
    """One reader of one shell, for one call."""

    def __init__(self, shell: ShellFolder, context: ExecutionContext) -> None:
        self._shell = shell
        self._deadline = Deadline(context.timeout)
        self._is_over = False
        self._searched_to = 0
        self.left_at: int | None = None
        """How far the search of `wait` got, if time ran out before it had seen all."""

    async def wait(self, since: int, seconds: float, pattern: Pattern | None) -> str | None:
        """Wait until there is output after `since`, or a matching line there; return that line.

        It ends early if the shell is over, or when the time of the call is up. There may be more output than can be
        searched in that time.
        """
        until = time.monotonic() + min(seconds, self._deadline.remaining)
        self._searched_to = since
        seen, searched, pause = -1, 0.0, _FIRST_PAUSE  # the first search reveals errors in the pattern
        while True:
            is_over, is_late = not self._shell.is_going_on(), time.monotonic() >= until
            size = self._shell.size
            if pattern is None and size > since:
                return None
            is_due = pattern is not None and (pattern.is_plain or time.monotonic() - searched >= _SEARCH_EVERY)
            if pattern is not None and size > seen and (is_due or is_over or is_late):
                found = await self._search(pattern, until, is_over=is_over)
                seen, searched = size, time.monotonic()
                if found is not None:
                    return found
            if is_over or is_late:
                return None
            await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    async def status(self) -> ShellRecord:
        """Return the shell's state. Call this before reading: only then is a finished shell's last page recognizable."""
        self._is_over = (record := await self._deadline.run(self._shell.record)).status is not ShellStatus.RUNNING
        return record

    async def page(self, since: int, room: int, pattern: Pattern | None) -> Page:
        """Read as many matching lines from a position on as there is room for."""
        page = Page(since)
        limit = _MAX_READ if pattern else min(_MAX_READ, max(_MIN_READ, 4 * room))
        while True:
            page.lines += await self._read_on(page, limit, pattern, 0 if pattern else room)
            if fitting(page.lines, room) < len(page.lines):
                return self._cut(page, room)
            if pattern is None or not page.has_more or self._deadline.is_over:
                return page

    async def tail(self, since: int, room: int, count: int, pattern: Pattern | None) -> Page:
        """Read the last matching lines; none of them from before a position."""
        size = self._shell.size
        window = _MAX_TAIL if pattern else _MIN_READ
        while True:
            start = max(since, size - window)
            page = await self._last(start, since, count, pattern)
            if len(page.lines) >= count or start == since or window >= _MAX_TAIL or self._deadline.is_over:
                break
            window *= 8
        shown = fitting(page.lines[::-1], room)
        if page.lines and not shown:
            page.lines, shown = [page.lines[-1]._replace(text=page.lines[-1].text[-room:])], 1
        page.lines = page.lines[len(page.lines) - shown :]
        return page

    async def _last(self, start: int, since: int, count: int, pattern: Pattern | None) -> Page:
        page = Page(start)
        kept: deque[Line] = deque(maxlen=count)
        while True:
            is_first = page.next == start
            lines = await self._read_on(page, _MAX_READ, pattern)
            kept.extend(lines[1:] if is_first and start > since else lines)  # the first may be the end of a longer one
            if not page.has_more or self._deadline.is_over:
                page.lines = list(kept)
                return page

    async def _search(self, pattern: Pattern, until: float, *, is_over: bool) -> str | None:
        """Continue the search until the end or the time to answer; return the first line that matches."""
        size = self._shell.size
        while True:
            found = await self._read(self._searched_to, _MAX_READ, size, is_over=is_over)
            matching = await pattern.matches(found.lines, self._deadline.remaining)
            hits = [found.lines[index] for index in matching if not found.lines[index].is_gap]
            if hits:
                return hits[0].text.rstrip("\n")
            is_open = not found.has_more and bool(found.lines) and not found.lines[-1].text.endswith("\n")
            self._searched_to = found.lines[-1].start if is_open else found.next  # a growing line may still match
            self.left_at = found.next if found.has_more and time.monotonic() >= until else None
            if not found.has_more or self.left_at is not None:
                return None

    async def _read_on(self, page: Page, limit: int, pattern: Pattern | None, room: int = 0) -> Sequence[Line]:
        found = await self._read(page.next, limit, self._shell.size, is_over=self._is_over, room=room)
        page.next, page.has_more = found.next, found.has_more
        if pattern is None or not found.lines:
            return found.lines
        matching = set(await pattern.matches(found.lines, self._deadline.remaining))
        return [line for index, line in enumerate(found.lines) if index in matching or line.is_gap]

    async def _read(self, since: int, limit: int, size: int, *, is_over: bool, room: int = 0) -> Page:
        output = self._shell.output
        return await self._deadline.run(partial(read_page, output, since, limit, size, is_over=is_over, room=room))

    def _cut(self, page: Page, room: int) -> Page:
        count = fitting(page.lines, room)
        if count:
            page.next, page.lines = page.lines[count].start, page.lines[:count]
        else:
            page.lines = [head_of(page.lines[0], self._shell.output, room)]
            page.next = page.lines[0].end
        page.has_more = True
        return page


def _whole(piece: Piece, *, can_wait: bool) -> Piece:
    """Drop an unfinished character or escape sequence at the end; where it is everything, only if it `can_wait` for the rest."""
    data, decoder = piece.data, codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-_LONGEST_CHARACTER:])
    escape = _UNFINISHED_ESCAPE.search(data[-_LONGEST_ESCAPE:])
    unfinished = max(len(decoder.getstate()[0]), len(escape[0]) if escape else 0)
    rest = data[: len(data) - unfinished]
    return Piece(piece.start, rest if rest or can_wait else data)


def _lines(piece: Piece, room: int = 0) -> list[Line]:
    lines, at = [], piece.start
    is_clean = is_plain(piece.data)
    if is_clean and 0 < len(piece.data) <= room:
        return [Line(piece.start, piece.end, piece.data.decode("utf-8", "replace"))]
    for raw in piece.data.split(b"\n"):
        end = min(at + len(raw) + 1, piece.end)
        if end > at:
            text = raw.decode("utf-8", "replace")
            lines.append(Line(at, end, (text if is_clean else plain(text)) + ("\n" if end > at + len(raw) else "")))
        at = end
    return lines


def _answer(shell: ShellFolder, record: ShellRecord, since: int, page: Page, facts: dict[str, Any]) -> ToolResult:
    runtime = shell.runtime_seconds()
    facts = {
        **facts_of(record),
        "since": since,
        "next_cursor": page.next,
        "size": max(record.size, page.next),
        "dropped_bytes": page.dropped,
        "truncated": page.has_more,
        "runtime_s": runtime,
        "last_output_age_s": shell.quiet_seconds(),
        **facts,
    }
    if page.has_more:
        facts["next"] = {"bash_id": shell.id, "since": page.next}
    text = page.text
    if text and not text.endswith("\n"):
        text += "\n"
    notes = _notes(facts)
    is_running, how = record.status is ShellStatus.RUNNING, state_of(record)
    if runtime is not None:
        how += f" {'for' if is_running else 'after'} {runtime:g}s"
    if is_running or page.has_more:
        how += f"; {'more follows' if page.has_more else 'go on'} with since={page.next}"
    return ToolResult.ok((text or "(no new output)\n") + "\n".join([*notes, f"[{how}]"]), **facts)


def _notes(facts: dict[str, Any]) -> list[str]:
    notes = []
    if facts["since"] > facts["size"]:
        notes.append(f"[since={facts['since']} is past the end: {facts['size']:,} bytes were written]")
    if line := facts.get("matched_line"):
        notes.append(f"[found: {line[:_MAX_SHOWN_LINE]}]")
    elif facts.get("matched") is False:
        to = facts["searched_to"]
        notes.append(f"[no line has matched wait_for{'' if to is None else f' before byte {to:,}: the time ran out'}]")
    return notes
