"""`forge-tools top` and `stats`: a running stack, from SQL only. They watch; they never act."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

from rich.live import Live
from rich.table import Table
from typer import Option

from forge_tools.cli.attention import BEATS, Concern, concerns, sentence, way_out
from forge_tools.cli.face import UNBOUNDED, App, Face, WideOption
from forge_tools.cli.screen import QUEUES, WORKERS, Frame, Screen
from forge_tools.cli.selection import Chosen, filtered
from forge_tools.cli.services import with_store
from forge_tools.cli.text import WIDE, Column, age, flexible, number, short_path, table, took
from forge_tools.config import Settings
from forge_tools.errors import StorageError
from forge_tools.model.history import Grouping
from forge_tools.model.overview import CallFigures, Overview, StuckCalls
from forge_tools.signals import ENDINGS, not_ignored
from forge_tools.storage import Store, open_store
from forge_tools.urls import without_passwords

LONGEST_WINDOW = 3600

REST = 3.0
"""The pause between two reads, as a multiple of the last read's duration: watching must not load the database."""

PATIENCE = 2.0
"""Seconds without an answer before that is shown."""

app = App()


@app.command()
def top(
    face: Face,
    *,
    interval: Annotated[float, Option(min=0.2, max=60, help="Seconds between two updates.")] = 1.0,
    window: Annotated[
        float, Option(min=1, max=LONGEST_WINDOW, help="Count calls that ended in the last so many seconds.")
    ] = 60.0,
    once: Annotated[bool, Option("--once", help="Print everything once, and exit.")] = False,
) -> None:
    """Watch workers, queues, rates and what needs attention until Ctrl-C; reads only SQL.

    Without a terminal, and with --output json, it prints once.
    """
    settings = Settings.load()
    is_live = not (once or face.is_json) and face.out.is_terminal and not face.out.is_dumb_terminal

    async def read(store: Store) -> Frame:
        return await frame_of(store, settings, window, interval if is_live else None)

    if is_live:
        asyncio.run(Watch(face, settings, read).run(interval))
        return
    frame = with_store(read, settings)
    if face.is_json:
        face.document(document(frame.seen, frame.concerns))
    else:
        face.out.print(Screen(frame))


async def frame_of(store: Store, settings: Settings, window: float, interval: float | None = None) -> Frame:
    """Read what is shown now, of calls that ended in the last `window` seconds; `interval` until the next, if any."""
    seen = await store.overviews.read(window=window, lease=settings.lease, patience=BEATS * settings.heartbeat)
    found = concerns(seen, heartbeat=settings.heartbeat, lease=settings.lease)
    return Frame(seen, found, place(settings.database), interval)


def place(url: str) -> str:
    """Return where the database is: without a password, and relative to this folder if it is a file below."""
    scheme, _, path = url.partition(":///")
    if not scheme.startswith("sqlite"):
        return without_passwords(url)
    return f"SQLite {short_path(path)}"


def document(seen: Overview, found: Sequence[Concern]) -> dict[str, Any]:
    return asdict(seen) | {
        "calls_per_second": seen.calls_per_second,
        "attention": [asdict(one) for one in found],
        "total": seen.total and _row(seen.total),
        "tools": [_row(one) for one in seen.tools],
        "workers": [asdict(one.worker) | {"running": one.running} for one in seen.workers],
    }


class Watch:
    """The live view. A thread draws what was read last, with its age while the database does not answer."""

    def __init__(self, face: Face, settings: Settings, read: Callable[[Store], Awaitable[Frame]]) -> None:
        self._face = face
        self._settings = settings
        self._read = read
        self._frame: Frame
        self._trouble: str | None = None
        self._asked_at = self._seen_at = time.monotonic()

    async def run(self, interval: float) -> None:
        watching = asyncio.ensure_future(self._watch(interval))
        for ending in not_ignored(*ENDINGS):
            asyncio.get_running_loop().add_signal_handler(ending, watching.cancel)
        try:
            await watching
        except asyncio.CancelledError:
            return
        finally:
            self._face.err.quiet = False

    async def _watch(self, interval: float) -> None:
        settings, out = self._settings, self._face.out
        async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
            self._frame = await self._read(store)
            self._face.err.quiet = True  # notes would disrupt the screen, which shows what matters
            often = max(1.0, 1 / interval)  # at least once a second: the age of old figures is on the screen
            with Live(
                console=out, screen=True, redirect_stderr=False, refresh_per_second=often, get_renderable=self._screen
            ) as live:
                live.refresh()
                while True:
                    spent = time.monotonic() - self._asked_at
                    await asyncio.sleep(max(interval - spent, REST * spent, 0.05))
                    self._asked_at = time.monotonic()
                    try:
                        self._frame, self._trouble = await self._read(store), None
                        self._seen_at = time.monotonic()
                    except StorageError as error:
                        self._trouble = error.message

    def _screen(self) -> Screen:
        now, trouble = time.monotonic(), self._trouble
        if trouble is None and self._asked_at > self._seen_at and (waiting := now - self._asked_at) > PATIENCE:
            trouble = f"The database has not answered for {age(waiting)}."
        said = None if trouble is None else f" The following is {age(now - self._seen_at)} old. {trouble} "
        return Screen(replace(self._frame, trouble=said), height=self._face.out.size.height)


@app.command()
@filtered("tool", "category", "agent", "session", "since", "until")
def stats(
    face: Face,
    *,
    by: Annotated[Grouping, Option(help="Group calls by this.")] = Grouping.TOOL,
    chosen: Chosen,
    wide: WideOption = False,
    from_rows: Annotated[
        bool, Option("--from-rows", help="Count every call, also in hours that are rolled up.")
    ] = False,
) -> None:
    """Show how calls ended and how long they took, the backlog per queue, calls that do not move, and workers."""
    settings = Settings.load()

    async def read(store: Store) -> tuple[list[CallFigures], Overview]:
        figures = await store.history.figures(by, from_rows=from_rows, **chosen)
        patience = BEATS * settings.heartbeat
        # The window limits only what is not shown here: rates, tools and failures.
        return figures, await store.overviews.read(window=1.0, lease=settings.lease, patience=patience)

    calls, seen = with_store(read, settings)
    live = [one for one in seen.workers if one.worker.silent_seconds <= settings.lease]
    silent = [one for one in seen.workers if one.worker.silent_seconds > settings.lease]
    if face.is_json:
        face.document(
            {
                "by": by.value,
                "calls": [_row(one) for one in calls],
                "queues": [_row(one) for one in seen.queues],
                "stuck": [_row(one) for one in seen.stuck],
                "workers": [_row(one.worker) for one in live],
                "silent": [_row(one.worker) for one in silent],
            }
        )
        return
    width = face.out.width = UNBOUNDED if wide else face.out.width
    columns = _figures(by, has_rejected=any(one.rejected for one in calls))
    _section(face, f"Calls by {by.value}", table(columns, calls, width), "Nothing was run yet.")
    _section(face, "\nQueues", table(QUEUES, seen.queues, width), "Nothing waits, nothing runs.")
    if seen.stuck:
        face.say("\nStuck", style="bold red")
    for one in seen.stuck:
        face.say(sentence(one))
        face.say(f"  {way_out(one)}", style="cyan")
    _section(face, "\nWorkers", table(WORKERS, live, width), "No worker is alive. Start one with: forge-tools up")
    if silent:
        face.say("\nSilent workers", style="bold yellow")
        face.out.print(table(WORKERS, silent, width))


def _row(one: Any) -> dict[str, Any]:
    if isinstance(one, CallFigures):
        return asdict(one) | {"success_rate": one.success_rate}
    if isinstance(one, StuckCalls):
        return asdict(one) | {"said": sentence(one), "way_out": way_out(one)}
    return asdict(one)


def _section(face: Face, title: str, shown: Table, nothing: str) -> None:
    face.say(title, style="bold")
    if shown.row_count:
        face.out.print(shown)
    else:
        face.say(nothing, style="dim")


def _figures(by: Grouping, *, has_rejected: bool) -> list[Column]:
    key = Column if by is Grouping.HOUR else flexible
    return [
        key(by.value, lambda one: one.key or "-"),
        number("calls", lambda one: str(one.calls)),
        number("ok", lambda one: "-" if one.success_rate is None else f"{one.success_rate:.1%}"),
        number("failed", lambda one: str(one.failed)),
        *([number("rejected", lambda one: str(one.rejected))] if has_rejected else []),
        number("p50", lambda one: took(one.duration_ms.p50)),
        number("p95", lambda one: took(one.duration_ms.p95)),
        number("p99", lambda one: took(one.duration_ms.p99)),
        number("wait p50", lambda one: took(one.wait_ms.p50), least=WIDE),
        number("wait p95", lambda one: took(one.wait_ms.p95)),
        number("wait p99", lambda one: took(one.wait_ms.p99), least=WIDE),
    ]
