"""What a program writes beside its messages: not more of it in the log than a reader wants."""

import logging
import time
from collections import deque

from forge_tools.mcp.lines import LongLine
from forge_tools.sandbox.processes.streams import plain

SHOWN_CHARS = 200
"""How much of one line logs and errors show."""

_WINDOW_SECONDS = 10.0
_LINES_A_WINDOW = 20
_REMEMBERED = 3


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
