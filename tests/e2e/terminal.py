"""A terminal of a given size with a command in it, and what is on its screen."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
from contextlib import suppress
from typing import Self

from tests.e2e.cli_driver import MODULE, Cli, warm_command
from tests.waiting import within

POLL_SECONDS = 0.1
ENTER, LEAVE, HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """Runs `forge-tools WORDS` on a pseudo-terminal until it is left."""

    def __init__(self, cli: Cli, *words: str, size: tuple[int, int] = (30, 100), **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(*size)
        variables = {**cli.environment(), "TERM": "xterm-256color", **environment}
        del variables["COLUMNS"]
        self.process = warm_command().start(
            [MODULE, *words], cwd=cli.folder, env=variables, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self._written, self._is_closed = b"", False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def keyboard(self) -> int:
        """What is written there is typed."""
        return self._ours

    @property
    def written(self) -> str:
        return self._written.decode(errors="replace")

    @property
    def frames(self) -> list[str]:
        """Everything that was drawn from the upper left corner on, without escapes; the last may be half drawn."""
        return [_ESCAPES.sub("", part) for part in self.written.split(HOME)[1:]]

    def shows(self, text: str) -> bool:
        """Whether the last frame that is whole has it."""
        return text in (self.frames or [""])[-1]

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if hasattr(self, "process"):
            self.process.send_signal(signal.SIGWINCH)

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(30)
        return code

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Do what closing its window does, but for the signal."""
        if not self._is_closed:
            self._is_closed = True
            self._reader.join(30)
            os.close(self._ours)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(30)
        self.close()

    def _read(self) -> None:
        try:
            while not self._is_closed:  # no deadline: its end closes the terminal
                if select.select([self._ours], [], [], POLL_SECONDS)[0]:
                    self._written += os.read(self._ours, 65536)
        except OSError:  # how Linux says that the other end is closed
            return


def read_to_the_end(terminal: int) -> str:
    """What is written to a terminal until the other side closes it."""
    seen, time_left = b"", within(60, "nobody closes the terminal")
    with suppress(OSError):  # how Linux says that the other end is closed
        while next(time_left) and (chunk := os.read(terminal, 65536)):
            seen += chunk
    os.close(terminal)
    return seen.decode()
