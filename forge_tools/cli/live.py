"""What a person sees of a call while it runs, on the error stream: where it is, how far, and what it puts out."""

import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Protocol, Self

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from forge_tools.cli.face import Face, one_line, printable
from forge_tools.cli.moments import took
from forge_tools.records import (
    CallEvent,
    Ended,
    ExecutionRecord,
    ExecutionStatus,
    Note,
    Output,
    Progress,
    Report,
    StateChange,
)

TAIL_LINES = 8
BAR_WIDTH = 24
PLAIN_SECONDS = 1.0
"""Between two lines of progress where there is no terminal."""


class View(Protocol):
    """Shows what it hears, from `with` to its end; from any thread."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def say(self, state: str) -> None: ...
    def hear(self, event: Note | Report) -> None: ...


async def watch(
    view: View, events: AsyncGenerator[CallEvent, None], read: Callable[[], Awaitable[ExecutionRecord]]
) -> None:
    """Show what there is to hear until the end; `read` gives the execution as it is."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, StateChange):
                view.say(describe(await read(), event.reason))
            elif not isinstance(event, Ended):
                view.hear(event)


def view_of(face: Face, *, keeps_output: bool, waited: float = 0.0) -> View:
    """Choose: on a terminal a line that moves, with the output above it, which goes with it unless it is to be kept.

    `waited` is how many seconds the call has taken already.
    """
    return Screen(face, keeps_output=keeps_output, waited=waited) if face.err.is_terminal else Plain(face)


class Plain:
    """Lines, for logs and pipes."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self._lines = _Lines()
        self._told_at = 0.0
        self._untold: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._write(self._lines.rest())
        if self._untold is not None:
            self._face.note(measured(self._untold))

    def say(self, state: str) -> None:
        """Say where the call is."""
        self._write(self._lines.rest())
        self._face.note(state)

    def hear(self, event: Note | Report) -> None:
        """Show what it reports, or what was done to it."""
        if isinstance(event, Output):
            self._write(self._lines.add(event))
        elif isinstance(event, Progress):
            self._untold = event
            if time.monotonic() - self._told_at >= PLAIN_SECONDS:
                self._told_at, self._untold = time.monotonic(), None
                self._face.note(measured(event))
        else:
            self.say(noted(event))

    def _write(self, lines: list[str]) -> None:
        for line in lines:
            self._face.note(line, style="")


class Screen:
    """A terminal. Nothing is shown before there is something to say."""

    def __init__(self, face: Face, *, keeps_output: bool, waited: float) -> None:
        self._face = face
        self._keeps_output = keeps_output
        self._began = time.monotonic() - waited
        self._lines = _Lines()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._state = ""
        self._progress: Progress | None = None
        self._spinner = Spinner("dots")
        self._live = Live(
            console=face.err, get_renderable=self._render, refresh_per_second=8, transient=True, redirect_stdout=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._show(self._lines.rest())
        self._live.stop()

    def say(self, state: str) -> None:
        """Say where the call is."""
        self._state, self._progress = state, None
        self._live.start(refresh=True)

    def hear(self, event: Note | Report) -> None:
        """Show what it reports, or what was done to it."""
        if isinstance(event, Output):
            self._show(self._lines.add(event))
        elif isinstance(event, Progress):
            self._progress = event
        else:
            self._show([*self._lines.rest(), noted(event)])
        self._live.start(refresh=True)

    def _show(self, lines: list[str]) -> None:
        if self._keeps_output:
            for line in lines:
                self._face.note(line, style="")
        else:
            self._tail.extend(lines)

    def _render(self) -> Group:
        parts = [Text(one_line(line), style="dim", no_wrap=True, overflow="ellipsis") for line in self._tail]
        return Group(*parts, self._status())

    def _status(self) -> Table:
        row = Table.grid(padding=(0, 1))
        elapsed = Text(f"{took((time.monotonic() - self._began) * 1000):>7}", style="dim")
        progress = self._progress
        if progress is not None and progress.share is not None:
            row.add_row(elapsed, ProgressBar(1.0, progress.share, width=BAR_WIDTH), Text(measured(progress)))
        else:
            row.add_row(self._spinner, elapsed, Text(measured(progress) if progress is not None else self._state))
        return row


class _Lines:
    """Whole lines out of parts; what was left out is said where it is missing."""

    def __init__(self) -> None:
        self._begun = ""

    def add(self, output: Output) -> list[str]:
        lines = [*self.rest(), f"... {output.left_out:,} bytes left out ..."] if output.left_out else []
        *whole, self._begun = (self._begun + output.text).split("\n")
        return [*lines, *map(printable, whole)]

    def rest(self) -> list[str]:
        begun, self._begun = self._begun, ""
        return [printable(begun)] if begun else []


def measured(progress: Progress) -> str:
    """How far it is, in a few words: `3 of 10 (30%)  compiling`."""
    of = f" of {progress.total:g}" if progress.total is not None else ""
    share = f" ({progress.share:.0%})" if progress.share is not None else ""
    return f"{progress.done:g}{of}{share}" + (f"  {one_line(progress.message)}" if progress.message else "")


def noted(note: Note) -> str:
    """What was done to it, in a few words."""
    reason = note.event.detail.get("reason")
    return one_line(f"{note.event.kind} by {note.event.actor}" + (f": {reason}" if reason else ""))


def describe(record: ExecutionRecord, reason: str | None = None) -> str:
    """What an execution waits for, in a few words; `reason` says how its last attempt ended."""
    if record.status is ExecutionStatus.QUEUED:
        again = f", attempt {record.attempt + 1}" if record.attempt else ""
        why = f": {one_line(reason)}" if reason else ""
        return f"{one_line(record.tool)} waits in queue {record.queue} ({record.lane} lane){again}{why}"
    if record.status is ExecutionStatus.RUNNING:
        again = f", attempt {record.attempt}" if record.attempt > 1 else ""
        return f"{one_line(record.tool)} runs on {record.hostname or 'a worker'}{again}"
    return f"{one_line(record.tool)} {record.status.value.replace('_', ' ')}"
