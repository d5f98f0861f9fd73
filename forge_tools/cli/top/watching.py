"""Looks again and again, and keeps the screen true: also while the database is away, and when the terminal changes."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from rich.live import Live

from forge_tools.cli.face import Face
from forge_tools.cli.moments import age
from forge_tools.cli.top.screen import Frame, Screen
from forge_tools.config import Settings
from forge_tools.errors import StorageError
from forge_tools.records import Overview
from forge_tools.signals import heeded
from forge_tools.storage import Store, open_store

REST = 3.0
"""Between two looks it rests at least so many times as long as the last one took: it must not load what it watches."""

PATIENCE = 2.0
"""Seconds without an answer until people are told."""


class Watch:
    """One run of the live view. `look` reads, `frame` says what is to be shown of it."""

    def __init__(
        self,
        face: Face,
        settings: Settings,
        look: Callable[[Store], Awaitable[Overview]],
        frame: Callable[[Overview], Frame],
    ) -> None:
        self._face = face
        self._settings = settings
        self._look = look
        self._frame = frame
        self._over = asyncio.Event()
        self._shown: Frame
        self._trouble: str | None = None
        self._asked_at = self._answered_at = self._seen_at = time.monotonic()

    async def run(self, interval: float) -> None:
        """Watch until Ctrl-C or SIGTERM.

        Raises:
            ForgeError: the first look failed, or no later one can succeed.
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
        self._take(await self._look(store))
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
            looking = asyncio.ensure_future(self._look(store))
            self._asked_at = time.monotonic()
            try:
                while not (await asyncio.wait((looking,), timeout=interval))[0]:
                    self._draw(live)
                self._take(looking.result())
            except StorageError as error:
                self._trouble = error.message
                self._answered_at = time.monotonic()
            finally:
                looking.cancel()

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
