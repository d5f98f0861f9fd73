"""Keeps the secrets of the calls that run out of what a worker writes: its log, and what tools print."""

import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from forge_tools.secrecy import CONCEALED, Scrubber

_running: list[Scrubber] = []


@contextmanager
def concealed(secrets: Collection[str]) -> Iterator[None]:
    """While a call runs in this task, keep its secrets out of what is written for it, and by threads of nobody knows whom."""
    if not secrets:
        yield
        return
    scrubber = Scrubber(secrets)
    CONCEALED.set(scrubber)  # in this task and what it starts; its end is theirs
    _running.append(scrubber)
    try:
        yield
    finally:
        _running.remove(scrubber)


class RedactedStream:
    """A stream to which no secrets are written: those of the call on whose behalf it is, or of all where nobody can tell."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write all of it but the secrets."""
        scrubber, clean = CONCEALED.get(), text
        for one in tuple(_running) if scrubber is None else (scrubber,):
            clean = one.text(clean)
        self._stream.write(clean)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redact_streams() -> None:
    """Have nothing secret printed from here on, nor logged by handlers that are made from here on."""
    sys.stdout = RedactedStream(sys.stdout)
    sys.stderr = RedactedStream(sys.stderr)
