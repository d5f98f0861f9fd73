"""What a program writes, cut into lines: none too long for the memory, and not more of them in the log than a reader wants."""

import logging
import time
from collections import deque
from typing import NamedTuple

from forge_tools.sandbox.terminals import plain

SHOWN_CHARS = 200
"""How much of one line logs and errors show."""

_END_BYTES = 1000
_WINDOW_SECONDS = 10.0
_LINES_A_WINDOW = 20
_REMEMBERED = 3


class LongLine(NamedTuple):
    """The two ends of a line that was longer than the limit, and how long it was."""

    head: bytes
    tail: bytes
    size: int


class Lines:
    """Cuts chunks into lines without their ends; `limit` is in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._dropped = 0
        self._head = b""

    def feed(self, chunk: bytes) -> list[bytes | LongLine]:
        """Take a chunk and return the lines that it ends."""
        *ended, rest = chunk.split(b"\n")
        lines: list[bytes | LongLine] = []
        for part in ended:
            self._keep(part)
            lines.append(self._taken())
        self._keep(rest)
        return lines

    def rest(self) -> bytes | LongLine:
        """Return what came after the last line."""
        return self._taken()

    def _keep(self, part: bytes) -> None:
        self._kept += part
        if len(self._kept) <= (self._limit if not self._head else 2 * _END_BYTES):
            return
        self._head = self._head or bytes(self._kept[:_END_BYTES])
        self._dropped += len(self._kept) - _END_BYTES
        del self._kept[:-_END_BYTES]

    def _taken(self) -> bytes | LongLine:
        line = bytes(self._kept)
        taken = LongLine(self._head, line, self._dropped + len(line)) if self._head else line
        self._kept.clear()
        self._head, self._dropped = b"", 0
        return taken


class Voice:
    """Logs the lines that a server writes beside its messages, the first ones of each ten seconds, and keeps the last in mind."""

    def __init__(self, logger: logging.Logger, level: int, message: str, server: str) -> None:
        self._logger, self._level, self._message = logger, level, message
        self._server = server
        self._last: deque[str] = deque(maxlen=_REMEMBERED)
        self._window = 0.0
        self._told = self._untold = 0

    def hear(self, line: bytes | LongLine) -> None:
        text = shortened(line)
        if not text:
            return
        self._last.append(text)
        now = time.monotonic()
        if now - self._window > _WINDOW_SECONDS:
            self._tell_untold()
            self._window, self._told = now, 0
        if self._told >= _LINES_A_WINDOW:
            self._untold += 1
            return
        self._told += 1
        self._logger.log(self._level, self._message, extra={"server": self._server, "line": text})

    def finish(self) -> None:
        self._tell_untold()

    def last(self) -> str:
        """The last lines, for a message that says why a server is not there."""
        return " / ".join(self._last)

    def _tell_untold(self) -> None:
        if self._untold:
            more = {"server": self._server, "lines": self._untold}
            self._logger.log(self._level, "An MCP server wrote more lines than are shown", extra=more)
        self._untold = 0


def shortened(line: bytes | LongLine) -> str:
    """Show a line to people: printable, and not much of it."""
    start, size = (line.head, line.size) if isinstance(line, LongLine) else (line[: 4 * SHOWN_CHARS], len(line))
    text = plain(start.decode("utf-8", "replace").strip())
    if len(text) <= SHOWN_CHARS and size <= 4 * SHOWN_CHARS:
        return text
    return f"{text[:SHOWN_CHARS]}... ({size:,} bytes)"
