"""`forge-tools top`: a stack as it works, from SQL alone. It watches; it never acts."""

import asyncio
import io
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.live import Live
from rich.terminal_theme import TerminalTheme
from typer import Option

from forge_tools.cli.attention import BEATS, Concern, concerns
from forge_tools.cli.database import with_store
from forge_tools.cli.face import App, Face
from forge_tools.cli.screen import Frame, Screen
from forge_tools.cli.text import age, short_path
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, StorageError
from forge_tools.model import Overview
from forge_tools.signals import heeded
from forge_tools.storage import Store, open_store
from forge_tools.urls import without_passwords

LONGEST_WINDOW = 3600

REST = 3.0
"""Between two reads it rests at least so many times as long as the last one took: it must not load what it watches."""

PATIENCE = 2.0
"""Seconds without an answer until people are told."""

WIDTH = 100

_THEME = TerminalTheme(
    (22, 27, 34),
    (216, 222, 233),
    [(72, 79, 88), (255, 123, 114), (126, 200, 120), (227, 179, 65), (121, 172, 255), (210, 168, 255), (86, 196, 205), (216, 222, 233)],
)  # fmt: skip

_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""
"""It names only fonts that are there: a page that fetches nothing shows it too."""

app = App()


@app.command()
def top(
    face: Face,
    *,
    interval: Annotated[float, Option(min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    window: Annotated[
        float, Option(min=1, max=LONGEST_WINDOW, help="Figures are of calls that ended in so many seconds.")
    ] = 60.0,
    once: Annotated[bool, Option("--once", help="Look once, print all of it, and end.")] = False,
    svg: Annotated[
        Path | None, Option(metavar="FILE", help="Look once, and write what there is to see as a picture.")
    ] = None,
) -> None:
    """Watch workers, queues, rates and what needs attention, from SQL alone, until Ctrl-C.

    Without a terminal, and with --output json, it looks once.
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
    """Where the database is: without a password, and a file below this folder as seen from here."""
    scheme, _, path = url.partition(":///")
    if not scheme.startswith("sqlite"):
        return without_passwords(url)
    return f"SQLite {short_path(path)}"


def document(seen: Overview, found: list[Concern]) -> dict[str, Any]:
    """What was read, as JSON."""
    total = asdict(seen.total) | {"success_rate": seen.total.success_rate} if seen.total else None
    return {
        "at": seen.at,
        "window": seen.window,
        "calls_per_second": seen.calls_per_second,
        "attention": [asdict(one) for one in found],
        "total": total,
        "tools": [asdict(one) | {"success_rate": one.success_rate} for one in seen.tools],
        "failures": [asdict(one) for one in seen.failures],
        "workers": [asdict(one.worker) | {"running": one.running} for one in seen.workers],
        "queues": [asdict(one) for one in seen.queues],
        "stuck": [asdict(one) for one in seen.stuck],
        "demoted": [asdict(one) for one in seen.demoted],
    }


class Watch:
    """One run of the live view, which stays true while the database is away, and when the terminal changes.

    `read` gives what there is to see, `frame` says what is to be shown of it.
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
        for number in heeded(signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._over.set)
        settings = self._settings
        async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
            watching = asyncio.ensure_future(self._watch(store, interval))
            ending = asyncio.ensure_future(self._over.wait())
            await asyncio.wait((watching, ending), return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, ending):
                task.cancel()
            ended, _ = await asyncio.gather(watching, ending, return_exceptions=True)
        if isinstance(ended, Exception):  # a cancellation is none
            raise ended

    async def _watch(self, store: Store, interval: float) -> None:
        self._take(await self._read(store))
        self._face.err.quiet = True  # notes would tear the screen; what matters is on it
        try:
            with Live(console=self._face.out, screen=True, auto_refresh=False, redirect_stderr=False) as live:
                asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, self._draw, live)
                await self._keep(store, live, interval)
        finally:
            self._face.err.quiet = False

    async def _keep(self, store: Store, live: Live, interval: float) -> None:
        while True:
            self._draw(live)
            took = self._answered_at - self._asked_at
            await asyncio.sleep(max(interval - took, REST * took, 0.05))
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
        said = None if trouble is None else f" What follows is {age(silent)} old. {trouble} "
        live.update(Screen(replace(self._shown, trouble=said), height=live.console.size.height), refresh=True)


def save(screen: Screen, path: Path) -> None:
    """Write it as a picture: for a report, or a page that shows what the command shows.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(screen, "")  # the last line is cut where its letters go below it
    svg = console.export_svg(title="forge-tools top", theme=_THEME, code_format=_SVG, unique_id="top")
    try:
        path.write_text("".join(f"{line.rstrip()}\n" for line in svg.splitlines()), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}. Give --svg another file.") from error
