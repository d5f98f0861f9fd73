"""Keeps running calls' secrets out of what a worker writes: its log, and what is printed on behalf of no call."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TextIO

from forge_tools.sandbox.processes.output import ScrubbedText
from forge_tools.secrets.scrubber import CONCEALED, Scrubber


class _Call:
    """What one running call has written so far; what it writes in parts is one text for each stream."""

    def __init__(self, scrubber: Scrubber) -> None:
        self.scrubber = scrubber
        self.is_over = False
        self._texts: dict[tuple[int, int], tuple[Scrubber, ScrubbedText]] = {}

    def text(self, stream: TextIO, scrubber: Scrubber) -> ScrubbedText:
        """Return what removes these secrets from what the call writes to that stream."""
        key = id(stream), id(scrubber)
        if (known := self._texts.get(key)) is None:
            # With the scrubber: as long as it lives, no other has its id.
            known = self._texts.setdefault(key, (scrubber, ScrubbedText(scrubber, stream.write)))
        return known[1]

    def end(self) -> None:
        self.is_over = True
        for _, text in tuple(self._texts.values()):
            with suppress(OSError, ValueError):  # nobody reads it any more, which is not the call's fault
                text.end()


_running: list[_Call] = []
_CALL: ContextVar[_Call | None] = ContextVar("forge_workers_call", default=None)


@contextmanager
def concealed(secrets: Collection[str]) -> Iterator[None]:
    """While a call runs in this task, keep its secrets out of what is written for it or by unknown threads."""
    call = _Call(Scrubber(secrets))
    CONCEALED.set(call.scrubber)  # in this task and in what it starts; it ends with them
    _CALL.set(call)
    _running.append(call)
    try:
        yield
    finally:
        _running.remove(call)
        call.end()


class RedactedStream:
    """A stream that writes no secrets: those of the call it writes for, or of all calls if that is unknown."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def move(self, stream: TextIO) -> None:
        """Write to that stream from here on."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write everything except secrets; a possible beginning of one waits for the next write or the call's end."""
        call, scrubber, running = _CALL.get(), CONCEALED.get(), tuple(_running)
        if scrubber is None and len(running) == 1:  # there are no other secrets here
            (call,) = running
            scrubber = call.scrubber
        if scrubber and call is not None and not call.is_over:
            call.text(self._stream, scrubber).put(text)
        else:
            clean = text
            for one in (scrubber,) if scrubber is not None else (other.scrubber for other in running):
                clean = one.text(clean)
            self._stream.write(clean)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
