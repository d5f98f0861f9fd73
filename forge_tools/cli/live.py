"""What a terminal shows of a call: its state, progress and output while it runs, and the pictures of its result."""

import asyncio
import base64
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import typer
from rich.console import Group
from rich.live import Live
from rich.progress import Progress as Bar
from rich.progress import ProgressColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from forge_tools.artifacts.media import IMAGES
from forge_tools.artifacts.reader import MOST_SHOWN
from forge_tools.cli.face import INTERRUPTED, Face
from forge_tools.cli.text import one_line, printable, took
from forge_tools.errors import ForgeError
from forge_tools.model.calls import ToolResult
from forge_tools.model.content import Image
from forge_tools.model.execution import ExecutionStatus
from forge_tools.model.history import Ended, ExecutionRecord, Note, StateChange
from forge_tools.model.scope import Output, Progress, Report
from forge_tools.signals import ENDINGS, not_ignored

if TYPE_CHECKING:
    from forge_tools.client import Handle

T = TypeVar("T")

TAIL_LINES = 8
BAR_WIDTH = 24
PLAIN_SECONDS = 1.0
"""The interval of progress lines without a terminal."""

PATIENCE = 1.0
"""Seconds of silence; most calls are over by then."""

_PIECE = 4096
"""The most characters that kitty accepts at once."""

_LAST_WORDS = 1.0
_CANCEL_SECONDS = 5.0


@contextmanager
def moving_line(
    face: Face, *columns: ProgressColumn, is_shown: bool = True, total: float | None = None, **fields: Any
) -> Iterator[Callable[..., object]]:
    """Show an updating line if the error stream is a terminal; the yielded function updates it, or does nothing."""
    if not (face.err.is_terminal and is_shown):
        yield lambda **_: None
        return
    with Bar(*columns, TimeElapsedColumn(), console=face.err, transient=True) as progress:
        yield partial(progress.update, progress.add_task("", total=total, **fields))


def cancellable(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; Ctrl-C, SIGTERM and SIGHUP cancel it, and become an exit code."""

    async def main() -> T:
        task = asyncio.ensure_future(work)

        def stop() -> None:
            if not task.cancelling():  # a second cancel would interrupt the cancelling of the call
                task.cancel()

        for number in not_ignored(*ENDINGS):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise typer.Exit(INTERRUPTED) from None


async def awaited(
    face: Face,
    handle: "Handle",
    *,
    timeout: float | None = None,
    is_detached: bool = False,
    is_live: bool | None = None,
) -> ToolResult:
    """Wait for the result. After a second, a terminal shows what the call waits for, and what the tool reports.

    `is_live` True shows that from the start, with or without a terminal; False never. An interrupt cancels the call,
    unless it is detached.
    """
    waiting = asyncio.ensure_future(handle.result(timeout))
    try:
        patience = 0.0 if is_live else PATIENCE
        await asyncio.wait([waiting], timeout=patience)
        if not waiting.done() and (face.err.is_terminal if is_live is None else is_live):
            await _watch_until(waiting, face, handle, patience)
        return await waiting
    except asyncio.CancelledError:
        waiting.cancel()
        if is_detached:
            face.note(f"It keeps running; wait for it with: forge-tools show {handle.id} --wait", style="yellow")
        else:
            await _cancel(face, handle)
        raise


async def _watch_until(waiting: "asyncio.Future[ToolResult]", face: Face, handle: "Handle", waited: float) -> None:
    keeps_output = face.is_json or not face.out.is_terminal  # else it appears again, with the result
    with View(face, keeps_output=keeps_output, waited=waited) as view:

        async def watch() -> None:
            async with aclosing(handle.events()) as events:
                async for event in events:
                    if isinstance(event, StateChange):
                        view.say(describe(await handle.record(), event.reason))
                    elif not isinstance(event, Ended):
                        view.hear(event)

        watching = asyncio.ensure_future(watch())
        try:
            await asyncio.wait([waiting])
            await asyncio.wait([watching], timeout=_LAST_WORDS)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)  # waiting for the result reveals what is wrong


async def _cancel(face: Face, handle: "Handle") -> None:
    try:
        async with asyncio.timeout(_CANCEL_SECONDS):
            outcome = await handle.cancel("interrupted at the command line")
    except (ForgeError, TimeoutError):
        face.note(f"Could not cancel {handle.id}; try: forge-tools cancel {handle.id}", style="yellow")
        return
    if outcome != "over":
        face.note(f"Cancelled {handle.id}", style="yellow")


class Lines:
    """Joins parts of output into whole lines, and marks omissions."""

    def __init__(self) -> None:
        self._begun: tuple[Output, str] | None = None

    def add(self, output: Output) -> list[tuple[Output, str]]:
        """Return the lines that end in this part, each with the part that it belongs to."""
        is_same = self._begun is not None and self._begun[0].source == output.source and not output.left_out
        lines = [] if is_same else self.rest()
        if output.left_out:
            lines.append((output, f"... {output.left_out:,} bytes left out ..."))
        begun = self._begun[1] if self._begun is not None else ""
        *whole, rest = (begun + output.text).split("\n")
        self._begun = (output, rest) if rest else None
        return [*lines, *((output, line) for line in whole)]

    def rest(self) -> list[tuple[Output, str]]:
        begun, self._begun = self._begun, None
        return [] if begun is None else [begun]


class View:
    """Shows a call from `with` to its end; its events may come from any thread.

    On a terminal that is an updating line below the last lines of output, which disappear with it unless they are to be
    kept; elsewhere it prints lines, for logs and pipes. Nothing appears until there is something to report. `waited` is
    how many seconds the call has taken already.
    """

    def __init__(self, face: Face, *, keeps_output: bool = True, waited: float = 0.0) -> None:
        self._face = face
        self._began = time.monotonic() - waited
        self._state = ""
        self._progress: Progress | None = None
        self._told_at = 0.0
        self._lines = Lines()
        self._spinner = Spinner("dots")
        is_dropped = face.err.is_terminal and not keeps_output
        self._tail = deque[str](maxlen=TAIL_LINES) if is_dropped else None
        self._live: Live | None = None
        if face.err.is_terminal:
            # Rich would redirect standard output to this console, which is the error stream.
            how: dict[str, Any] = {"refresh_per_second": 8, "transient": True, "redirect_stdout": False}
            self._live = Live(console=face.err, get_renderable=self._render, **how)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._put(self._rest())
        if self._live is not None:
            self._live.stop()
        elif self._progress is not None:
            self._face.note(measured(self._progress))

    def say(self, state: str) -> None:
        if self._live is None:
            self._put(self._rest())
            self._face.note(state)
        else:
            self._state, self._progress = state, None
            self._live.start(refresh=True)

    def hear(self, event: Note | Report) -> None:
        if isinstance(event, Output):
            self._put(map(_said, self._lines.add(event)))
        elif isinstance(event, Progress):
            self._progress = event
            if self._live is None and time.monotonic() - self._told_at >= PLAIN_SECONDS:
                self._told_at, self._progress = time.monotonic(), None
                self._face.note(measured(event))
        elif self._live is None:
            self.say(noted(event))
        else:
            self._put([*self._rest(), noted(event)])
        if self._live is not None:
            self._live.start(refresh=True)  # does nothing but the first time

    def _rest(self) -> list[str]:
        return list(map(_said, self._lines.rest()))

    def _put(self, lines: Iterable[str]) -> None:
        if self._tail is not None:
            self._tail.extend(lines)
            return
        for line in lines:
            self._face.note(line, style="")

    def _render(self) -> Group:
        row = Table.grid(padding=(0, 1))
        elapsed = Text(f"{took((time.monotonic() - self._began) * 1000):>7}", style="dim")
        progress = self._progress
        if progress is not None and progress.share is not None:
            row.add_row(elapsed, ProgressBar(1.0, progress.share, width=BAR_WIDTH), Text(measured(progress)))
        else:
            row.add_row(self._spinner, elapsed, Text(measured(progress) if progress is not None else self._state))
        tail = (Text(one_line(line), "dim", no_wrap=True, overflow="ellipsis") for line in self._tail or ())
        return Group(*tail, row)


def _said(told: tuple[Output, str]) -> str:
    output, line = told
    return printable(line if output.level is None else f"{output.source}: {line}")


def measured(progress: Progress) -> str:
    """Describe the progress in a few words: `3 of 10 (30%)  compiling`."""
    of = f" of {progress.total:g}" if progress.total is not None else ""
    share = f" ({progress.share:.0%})" if progress.share is not None else ""
    return f"{progress.done:g}{of}{share}" + (f"  {one_line(progress.message)}" if progress.message else "")


def noted(note: Note) -> str:
    reason = note.event.detail.get("reason")
    return one_line(f"{note.event.kind} by {note.event.actor}" + (f": {reason}" if reason else ""))


def describe(record: ExecutionRecord, reason: str | None = None) -> str:
    """Describe in a few words what an execution waits for; `reason` says how its last attempt ended."""
    tool = one_line(record.tool)
    if record.status is ExecutionStatus.QUEUED:
        again = f", attempt {record.attempt + 1}" if record.attempt else ""
        why = f": {one_line(reason)}" if reason else ""
        return f"{tool} waits in queue {record.queue} ({record.lane} lane){again}{why}"
    if record.status is ExecutionStatus.RUNNING:
        again = f", attempt {record.attempt}" if record.attempt > 1 else ""
        return f"{tool} runs on {record.hostname or 'a worker'}{again}"
    return f"{tool} {record.status.value.replace('_', ' ')}"


async def pictures_of(face: Face, result: ToolResult) -> str:
    """Return the terminal sequence for the images of a result, if the output goes to a terminal that supports them."""
    protocol = _protocol() if face.out.is_terminal and not face.is_json else None
    if protocol is None:
        return ""
    drawn = list[str]()
    for image in result.images:
        takes = image.mime_type in IMAGES if protocol == "iterm" else image.mime_type == "image/png"
        if takes and (image.size or 0) <= MOST_SHOWN:
            with suppress(ForgeError):  # it has expired: its line stays
                drawn.append(await _drawn(image, protocol))
    return "".join(drawn)


def _protocol() -> Literal["kitty", "iterm"] | None:
    """Return the protocol that the terminal announces; a terminal running inside it announces its own."""
    terminal, program = os.environ.get("TERM", ""), os.environ.get("TERM_PROGRAM", "")
    if terminal.startswith(("screen", "tmux", "dumb")):
        return None
    if terminal in {"xterm-kitty", "xterm-ghostty"} or "KITTY_WINDOW_ID" in os.environ:
        return "kitty"
    return "iterm" if program in {"iTerm.app", "WezTerm"} else None


async def _drawn(image: Image, protocol: str) -> str:
    data = base64.b64encode(await image.bytes()).decode()
    if protocol == "iterm":
        return f"\x1b]1337;File=inline=1;size={image.size}:{data}\x07\n"
    return "".join(_pieces(data)) + "\n"


def _pieces(data: str) -> Iterator[str]:
    for start in range(0, len(data), _PIECE):
        has_more = int(start + _PIECE < len(data))
        keys = f"a=T,f=100,m={has_more}" if not start else f"m={has_more}"
        yield f"\x1b_G{keys};{data[start : start + _PIECE]}\x1b\\"
