"""The worker's end of the line to its watchdog: a byte for each heartbeat of the engine, through a socket that only the two hold."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from workers.watchdog import FAREWELL

PROGRAM = str(Path(__file__).with_name("watchdog.py"))
END_SECONDS = 2.0

logger = logging.getLogger(__name__)


class Lifeline:
    """While entered, a watchdog kills this process after `limit` seconds without a beat; None, or no /proc: it has none.

    It does so too when our end is closed without a farewell, which is said by who leaves with nothing raised. Forked children close the sockets they inherit, so the watchdog sees our end whoever outlives us.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit if Path("/proc/self/stat").exists() else None
        self._lifeline: socket.socket | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def watchdog(self) -> int | None:
        """The pid of the watchdog."""
        return None if self._watchdog is None else self._watchdog.pid

    def __enter__(self) -> Self:
        if self._limit is None:
            return self
        self._lifeline, theirs = socket.socketpair()
        self._lifeline.settimeout(0)
        facts = [theirs.fileno(), os.getpid(), self._limit]
        try:
            with theirs:
                self._watchdog = subprocess.Popen(
                    [sys.executable, "-I", "-S", PROGRAM, *map(str, facts)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is meant for the worker, which then drains
                )
        except OSError as error:
            logger.warning("This worker runs without its watchdog", extra={"error": str(error)})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lifeline is not None:
            with suppress(OSError):
                if kind is None:
                    self._lifeline.send(FAREWELL)
            self._lifeline.close()
        if self._watchdog is None or kind is not None:
            return
        try:
            self._watchdog.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            self._watchdog.wait()

    def beat(self) -> None:
        """Say that this process moves. A watchdog that is gone or behind is no reason to stop."""
        if self._lifeline is not None:
            with suppress(OSError):
                self._lifeline.send(b".")

    async def beat_for_ever(self, seconds: float) -> None:
        """Say so whenever the loop comes to it, whatever the database does."""
        while True:
            self.beat()
            await asyncio.sleep(seconds)
