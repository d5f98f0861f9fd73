"""`forge-tools top` and `stats`: a running stack, from SQL only. They watch; they never act."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from rich.live import Live
from rich.table import Table
from typer import Option

from forge_tools.cli.attention import BEATS, Concern, concerns, sentence, way_out
from forge_tools.cli.database import with_store
from forge_tools.cli.face import UNBOUNDED, App, Face, WideOption
from forge_tools.cli.screen import Frame, Screen, save
from forge_tools.cli.selection import Chosen, filtered
from forge_tools.cli.text import Column, age, flexible, gap, number, short_path, table, took
from forge_tools.config import Settings
from forge_tools.errors import StorageError
from forge_tools.model import CallFigures, Grouping, Overview, QueueDepth, StuckCalls, WorkerRecord
from forge_tools.signals import not_ignored
from forge_tools.storage import Store, open_store
from forge_tools.urls import without_passwords

LONGEST_WINDOW = 3600

REST = 3.0
"""The pause between two reads, as a multiple of the last read's duration: watching must not load the database."""

PATIENCE = 2.0
"""Seconds without an answer before that is shown."""

WAITS = (("p50", "p95", "p99"), ("p50", "p95"), ("p95",))
LEAST_KEY = 16
"""The fewest characters of a row's key; longer names may be cut there."""

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
    svg: Annotated[Path | None, Option(metavar="FILE", help="Write the screen once as a picture, and exit.")] = None,
) -> None:
    """Watch workers, queues, rates and what needs attention until Ctrl-C; reads only SQL.

    Without a terminal, and with --output json, it prints once.
    """
    settings = Settings.load()
    where = place(settings.database)

    async def read(store: Store) -> Overview:
        patience = BEATS * settings.heartbeat
        return await store.overviews.read(window=window, lease=settings.lease, patience=patience)

    def judged(seen: Overview) -> list[Concern]:
        return concerns(seen, heartbeat=settings.heartbeat, lease=settings.lease)

    if not (once or svg or face.is_json) and face.out.is_terminal and not face.out.is_dumb_terminal:
        asyncio.run(Watch(face, settings, read, lambda seen: Frame(seen, judged(seen), where, interval)).run(interval))
        return
    seen = with_store(read, settings)
    if svg is not None:
        save(Screen(Frame(seen, judged(seen), where)), svg)
    if face.is_json:
        face.document(document(seen, judged(seen)))
    elif svg is None:
        face.out.print(Screen(Frame(seen, judged(seen), where)))


def place(url: str) -> str:
    """Return where the database is: without a password, and relative to this folder if it is a file below."""
    scheme, _, path = url.partition(":///")
    if not scheme.startswith("sqlite"):
        return without_passwords(url)
    return f"SQLite {short_path(path)}"


def document(seen: Overview, found: list[Concern]) -> dict[str, Any]:
    """Return the overview as JSON."""
    return asdict(seen) | {
        "calls_per_second": seen.calls_per_second,
        "attention": [asdict(one) for one in found],
        "total": seen.total and _row(seen.total),
        "tools": [_row(one) for one in seen.tools],
        "workers": [asdict(one.worker) | {"running": one.running} for one in seen.workers],
    }


class Watch:
    """One run of the live view, which stays correct while the database is unavailable, and when the terminal changes.

    `read` returns the data, `frame` what to show of them.
    """

    def __init__(
        self,
        face: Face,
        settings: Settings,
        read: Callable[[Store], Awaitable[Overview]],
        frame: Callable[[Overview], Frame],
    ) -> None:
        self._face = face
        self._settings = settings
        self._read = read
        self._frame = frame
        self._over = asyncio.Event()
        self._shown: Frame
        self._trouble: str | None = None
        self._asked_at = self._answered_at = self._seen_at = time.monotonic()

    async def run(self, interval: float) -> None:
        """Watch until Ctrl-C or SIGTERM.

        Raises:
            ForgeError: the first read failed, or no later one can succeed.
        """
        loop = asyncio.get_running_loop()
        for ending in not_ignored(signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(ending, self._over.set)
        settings = self._settings
        async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
            watching = asyncio.ensure_future(self._watch(store, interval))
            over = asyncio.ensure_future(self._over.wait())
            await asyncio.wait((watching, over), return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, over):
                task.cancel()
            ended, _ = await asyncio.gather(watching, over, return_exceptions=True)
        if isinstance(ended, Exception):  # a cancellation is not one
            raise ended

    async def _watch(self, store: Store, interval: float) -> None:
        self._take(await self._read(store))
        self._face.err.quiet = True  # notes would disrupt the screen, which shows what matters
        try:
            with Live(console=self._face.out, screen=True, auto_refresh=False, redirect_stderr=False) as live:
                asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, self._draw, live)
                await self._keep(store, live, interval)
        finally:
            self._face.err.quiet = False

    async def _keep(self, store: Store, live: Live, interval: float) -> None:
        while True:
            self._draw(live)
            spent = self._answered_at - self._asked_at
            await asyncio.sleep(max(interval - spent, REST * spent, 0.05))
            reading = asyncio.ensure_future(self._read(store))
            self._asked_at = time.monotonic()
            try:
                while not (await asyncio.wait((reading,), timeout=interval))[0]:
                    self._draw(live)
                self._take(reading.result())
            except StorageError as error:
                self._trouble = error.message
                self._answered_at = time.monotonic()
            finally:
                reading.cancel()

    def _take(self, seen: Overview) -> None:
        self._shown, self._trouble = self._frame(seen), None
        self._answered_at = time.monotonic()
        self._seen_at = self._answered_at

    def _draw(self, live: Live) -> None:
        trouble = self._trouble
        silent = time.monotonic() - self._seen_at
        waiting = time.monotonic() - self._asked_at
        if trouble is None and self._asked_at > self._answered_at and waiting > PATIENCE:
            trouble = f"The database has not answered for {age(waiting)}."
        said = None if trouble is None else f" The following is {age(silent)} old. {trouble} "
        live.update(Screen(replace(self._shown, trouble=said), height=live.console.size.height), refresh=True)


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

    async def read(store: Store) -> dict[str, list[Any]]:
        workers = [one for one in await store.workers.list() if one.stopped_at is None]
        return {
            "calls": await store.history.figures(by, from_rows=from_rows, **chosen),
            "queues": await store.overviews.backlog(),
            "stuck": await store.overviews.stuck(lease=settings.lease, patience=BEATS * settings.heartbeat),
            "workers": [one for one in workers if one.silent_seconds <= settings.lease],
            "silent": [one for one in workers if one.silent_seconds > settings.lease],
        }

    numbers = with_store(read, settings)
    if face.is_json:
        face.document({"by": by.value, **{name: [_row(one) for one in some] for name, some in numbers.items()}})
        return
    face.out.width = UNBOUNDED if wide else face.out.width
    _print(face, by, **numbers)


def _row(one: Any) -> dict[str, Any]:
    if isinstance(one, CallFigures):
        return asdict(one) | {"success_rate": one.success_rate}
    if isinstance(one, StuckCalls):
        return asdict(one) | {"said": sentence(one), "way_out": way_out(one)}
    return asdict(one)


def _print(
    face: Face,
    by: Grouping,
    *,
    calls: Sequence[CallFigures],
    queues: Sequence[QueueDepth],
    stuck: Sequence[StuckCalls],
    workers: Sequence[WorkerRecord],
    silent: Sequence[WorkerRecord],
) -> None:
    width = face.out.width
    _section(face, f"Calls by {by.value}", _figures_table(by, calls, width), "Nothing was run yet.")
    _section(face, "\nQueues", table(_DEPTHS, queues, width), "Nothing waits, nothing runs.")
    if stuck:
        face.say("\nStuck", style="bold red")
    for one in stuck:
        face.say(sentence(one))
        face.say(f"  {way_out(one)}", style="cyan")
    _section(face, "\nWorkers", table(_WORKERS, workers, width), "No worker is alive. Start one with: forge-tools up")
    if silent:
        face.say("\nSilent workers", style="bold yellow")
        face.out.print(table(_WORKERS, silent, width))


def _section(face: Face, title: str, shown: Table, nothing: str) -> None:
    face.say(title, style="bold")
    if shown.row_count:
        face.out.print(shown)
    else:
        face.say(nothing, style="dim")


def _figures_table(by: Grouping, calls: Sequence[CallFigures], width: int) -> Table:
    """Return a row for each tool, or other group: ends, durations of bodies, then waits.

    It shows as many percentiles of the waits as leave room for the row's key.
    """
    for waits in WAITS:
        columns = _figures(by, waits, has_rejected=any(one.rejected for one in calls))
        widths = [max(map(len, (one.title, *map(one.cell, calls)))) for one in columns]
        widths[0] = widths[0] if by is Grouping.HOUR else min(widths[0], LEAST_KEY)
        if sum(widths) + gap(width) * (len(widths) - 1) <= width:
            return table(columns, calls, width)
    return table(columns, calls, 0)


def _figures(by: Grouping, waits: Sequence[str], *, has_rejected: bool) -> list[Column]:
    key = Column if by is Grouping.HOUR else flexible
    return [
        key(by.value, lambda one: one.key or "-"),
        number("calls", lambda one: str(one.calls)),
        number("ok", lambda one: "-" if one.success_rate is None else f"{one.success_rate:.1%}"),
        number("failed", lambda one: str(one.failed)),
        *([number("rejected", lambda one: str(one.rejected))] if has_rejected else []),
        *(number(name, _percentile("duration_ms", name)) for name in ("p50", "p95", "p99")),
        *(number(name if at else f"wait {name}", _percentile("wait_ms", name)) for at, name in enumerate(waits)),
    ]


def _percentile(times: str, name: str) -> Callable[[CallFigures], str]:
    return lambda one: took(getattr(getattr(one, times), name))


_DEPTHS: tuple[Column, ...] = (
    Column("queue", lambda one: one.queue),
    Column("lane", lambda one: one.lane),
    number("waiting", lambda one: str(one.queued)),
    number("running", lambda one: str(one.running)),
    number("oldest", lambda one: "-" if one.oldest_seconds is None else age(one.oldest_seconds)),
)

_WORKERS: tuple[Column, ...] = (
    flexible("host", lambda one: one.hostname),
    number("pid", lambda one: str(one.pid)),
    Column("lane", lambda one: one.lane),
    Column("walls", lambda one: one.walls.tier),
    flexible("queues", lambda one: one.serves),
    number("slots", lambda one: str(one.slots)),
    number("seen", lambda one: f"{age(one.silent_seconds)} ago"),
)
