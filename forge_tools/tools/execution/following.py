"""Reading what a shell writes, and waiting until it has written what somebody waits for."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from forge_tools.records import ExecutionContext, ShellRecord, ShellStatus
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.execution.pages import SLICE_BYTES, Line, fitting, head_of, read_slice
from forge_tools.tools.execution.patterns import Pattern
from forge_tools.tools.file.effort import Effort

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_SEARCH_EVERY = 0.05  # seconds between two starts of a search program, of which each costs milliseconds
_MIN_READ = 64 << 10
_MAX_TAIL = 8 << 20


@dataclass(slots=True, kw_only=True)
class Page:
    """Lines to show. `next` is where to go on: behind what was looked at, or where there was no more room."""

    next: int
    lines: list[Line] = field(default_factory=list)
    has_more: bool = False

    @property
    def text(self) -> str:
        return "".join(line.text for line in self.lines)

    @property
    def dropped(self) -> int:
        return sum(line.end - line.start for line in self.lines if line.is_gap)


class Following:
    """One reader of one shell, for one call."""

    def __init__(self, shell: ShellFolder, context: ExecutionContext) -> None:
        self._shell = shell
        self._effort = Effort(context)
        self._deadline = Deadline(context)
        self._is_over = False
        self._searched_to = 0
        self.left_at: int | None = None
        """How far `wait` has come with its search, where the time was over before it had seen all."""

    async def wait(self, since: int, seconds: float, pattern: Pattern | None) -> str | None:
        """Wait until there is output behind `since`, or a line there that matches; return that line.

        Nothing more can come of a shell that is over, and the time of the call is a limit too. What was written may be more
        than can be searched in the time.
        """
        until = time.monotonic() + min(seconds, self._deadline.remaining)
        self._searched_to = since
        seen, searched, pause = -1, 0.0, _FIRST_PAUSE  # the first search tells what is wrong with the pattern
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
        """How the shell is. Look before reading: what is over writes no more, so that its last page is the last."""
        self._is_over = (record := await self._effort.run(self._shell.record)).status is not ShellStatus.RUNNING
        return record

    async def page(self, since: int, room: int, pattern: Pattern | None) -> Page:
        """Read as many lines from a position on as there is room for, of those that match."""
        page = Page(next=since)
        limit = SLICE_BYTES if pattern else min(SLICE_BYTES, max(_MIN_READ, 4 * room))
        while True:
            page.lines += await self._read(page, limit, pattern, 0 if pattern else room)
            if fitting(page.lines, room) < len(page.lines):
                return self._cut(page, room)
            if pattern is None or not page.has_more or self._deadline.is_over:
                return page

    async def tail(self, since: int, room: int, count: int, pattern: Pattern | None) -> Page:
        """Read the last lines, of those that match; none of them from before a position."""
        size = self._shell.size
        window = _MAX_TAIL if pattern else _MIN_READ
        while True:
            start = max(since, size - window)
            page, lines = await self._last(start, since, count, pattern)
            if len(lines) >= count or start == since or window >= _MAX_TAIL or self._deadline.is_over:
                break
            window *= 8
        shown = fitting(lines[::-1], room)
        if lines and not shown:
            lines, shown = [lines[-1]._replace(text=lines[-1].text[-room:])], 1
        page.lines = lines[len(lines) - shown :]
        return page

    async def _last(self, start: int, since: int, count: int, pattern: Pattern | None) -> tuple[Page, list[Line]]:
        page = Page(next=start)
        kept: deque[Line] = deque(maxlen=count)
        while True:
            is_first = page.next == start
            lines = await self._read(page, SLICE_BYTES, pattern)
            kept.extend(lines[1:] if is_first and start > since else lines)  # the first may be the end of a longer one
            if not page.has_more or self._deadline.is_over:
                return page, list(kept)

    async def _search(self, pattern: Pattern, until: float, *, is_over: bool) -> str | None:
        """Search on to the end, or until it is time to answer; return the first line that matches."""
        size = self._shell.size
        while True:
            read = partial(read_slice, self._shell.output, self._searched_to, SLICE_BYTES, size, is_over=is_over)
            found = await self._effort.run(read)
            matching = await pattern.matches([line.text for line in found.lines], self._deadline.remaining)
            hits = [found.lines[index] for index in matching if not found.lines[index].is_gap]
            if hits:
                return hits[0].text.rstrip("\n")
            is_open = not found.has_more and bool(found.lines) and not found.lines[-1].text.endswith("\n")
            self._searched_to = found.lines[-1].start if is_open else found.next  # a line that grows may match yet
            self.left_at = found.next if found.has_more and time.monotonic() >= until else None
            if not found.has_more or self.left_at is not None:
                return None

    async def _read(self, page: Page, limit: int, pattern: Pattern | None, room: int = 0) -> Sequence[Line]:
        at, size, is_over = page.next, self._shell.size, self._is_over
        read = partial(read_slice, self._shell.output, at, limit, size, is_over=is_over, room=room)
        found = await self._effort.run(read)
        page.next, page.has_more = found.next, found.has_more
        if pattern is None or not found.lines:
            return found.lines
        matching = set(await pattern.matches([line.text for line in found.lines], self._deadline.remaining))
        return [line for index, line in enumerate(found.lines) if index in matching or line.is_gap]

    def _cut(self, page: Page, room: int) -> Page:
        count = fitting(page.lines, room)
        if count:
            page.next, page.lines = page.lines[count].start, page.lines[:count]
        else:
            page.lines = [head_of(page.lines[0], self._shell.output, room)]
            page.next = page.lines[0].end
        page.has_more = True
        return page
