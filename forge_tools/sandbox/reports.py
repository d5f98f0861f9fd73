"""What a body has reported and nobody has taken yet: bounded, whatever the body does, and never in its way."""

import codecs
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from forge_tools.records import REPORTER, ExecutionContext, Output, Progress, Report, Reporter, Told
from forge_tools.sandbox.processes.output import ScrubbedText, scrubbed_text
from forge_tools.sandbox.processes.streams import plain
from forge_tools.secrecy import Scrubber

PART_BYTES = 16_384
"""Of the output between two takes so much is kept from its beginning, and as much from its end."""

MOST_BYTES = 1 << 20
"""Of the output of one attempt; of what comes after, only the end is kept."""

MESSAGE_CHARS = 500

ROWS_PER_STEP = 500
"""After so many rows of output they come half as often, again and again: a call that talks for days has thousands."""

_MOST_COUNTED = 1 << 53


class ReportBuffer(Reporter):
    """One attempt's reports. Its body tells from any thread; whoever holds it takes, at most every `interval` seconds.

    `news` is called, on the thread that tells, when there is something to take and before there was nothing: it must not
    block. Between two takes the newest progress replaces older, and output is cut in its middle.
    """

    def __init__(
        self,
        news: Callable[[], None],
        *,
        interval: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._news = news
        self._interval = interval
        self._clock = clock
        self._lock = threading.RLock()
        self._is_closed = False
        self._is_told = False
        self._progress: tuple[float, float | None, str | None] | None = None
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0
        self._is_split = False
        self._room = MOST_BYTES
        self._due = 0.0
        self._rows = self._number = 0
        self._decoder: Any = None

    @property
    def is_waiting(self) -> bool:
        """Whether there is something that was not taken."""
        return self._progress is not None or bool(self._head or self._tail or self._left_out)

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        if self._is_closed:
            return
        text = None if message is None else str(message)[:MESSAGE_CHARS]
        with self._lock:
            before = self._progress[0] if self._progress else 0.0
            self._progress = _number(done, before), _positive(total), text
        self._tell()

    def emit(self, text: str | bytes) -> None:
        if self._is_closed or not text:
            return
        data = text if isinstance(text, bytes | bytearray | memoryview) else str(text)
        with self._lock:
            if isinstance(data, str):
                self._add_text(data)
            else:
                self._add(bytes(data))
        self._tell()

    def pass_on(self, told: Told) -> None:
        """Take over what another buffer gave."""
        if told.done is not None:
            self.progress(told.done, told.total, told.text)
            return
        if told.left_out > 0 and not self._is_closed:
            with self._lock:
                self._skip(told.left_out)
        self.emit(told.text or "")
        self._tell()

    def take(self) -> list[Told]:
        """What is to be told now, in order. Progress is always; output is not more often than it may be."""
        with self._lock:
            now = self._clock()
            told = self._take_output() if now >= self._due else []
            if told:
                self._due = now + self._interval
            told += self._take_progress()
            self._is_told = self.is_waiting
            return told

    def close(self) -> list[Told]:
        """Take what is left; what is told from now on is nobody's."""
        with self._lock:
            self._is_closed = True
            if not (self.is_waiting or self._decoder):
                return []
            return [*self._take_output(is_last=True), *self._take_progress()]

    def silence(self) -> None:
        """Take nothing more, and forget what there is, in a process in which nobody takes it."""
        self._is_closed = True

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._news()

    def _add_text(self, text: str) -> None:
        """Of a long text that cannot be kept the middle is only counted, and that without a copy where it is ASCII."""
        if len(text) > 4 * PART_BYTES and text.isascii():
            self._add(text[:PART_BYTES].encode())
            self._skip(len(text) - 3 * PART_BYTES)
            text = text[-2 * PART_BYTES :]
        self._add(text.encode("utf-8", "backslashreplace"))

    def _add(self, data: bytes) -> None:
        room = 0 if self._is_split else min(PART_BYTES, self._room - PART_BYTES) - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._is_split = True
            self._tail += data[-2 * PART_BYTES :]
            self._left_out += max(0, len(data) - 2 * PART_BYTES)
            if len(self._tail) > 2 * PART_BYTES:
                self._cut_tail()

    def _cut_tail(self) -> None:
        excess = len(self._tail) - min(PART_BYTES, self._room)
        if excess > 0:
            self._left_out += excess
            del self._tail[:excess]

    def _skip(self, count: int) -> None:
        """Leave a gap here: what is behind the last one is given up, too."""
        self._is_split = True
        self._left_out += count + len(self._tail)
        self._tail.clear()

    def _take_progress(self) -> list[Told]:
        progress, self._progress = self._progress, None
        return [] if progress is None else [Told(self._next(), *progress)]

    def _take_output(self, *, is_last: bool = False) -> list[Told]:
        if not (self._head or self._tail or self._left_out or (is_last and self._decoder)):
            return []
        is_full = self._room <= PART_BYTES and not is_last
        told = [] if is_full else self._take_text(is_last=is_last)
        if is_full and self._left_out:
            told = self._row("", self._left_out)
            self._left_out = 0
        self._rows += bool(told)
        if is_full or (told and self._rows % ROWS_PER_STEP == 0):
            self._interval *= 2
        return told

    def _take_text(self, *, is_last: bool) -> list[Told]:
        self._cut_tail()
        head, tail, left_out = bytes(self._head), bytes(self._tail), self._left_out
        self._room -= len(head) + len(tail)
        self._head.clear()
        self._tail.clear()
        self._left_out, self._is_split = 0, False
        if not left_out:
            return self._row(self._decoded(head + tail, is_last=is_last))
        told = self._row(self._decoded(head))
        left_out += len(self._decoder.getstate()[0]) if self._decoder else 0
        self._decoder = None
        start = next((at for at, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), 0)
        text = self._decoded(tail[start:], is_last=is_last)
        return [*told, *self._row(text, left_out + start)]

    def _decoded(self, data: bytes, *, is_last: bool = False) -> str:
        """Keep back the first bytes of a character whose others are still to come."""
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return plain(self._decoder.decode(data, is_last))

    def _row(self, text: str, left_out: int = 0) -> list[Told]:
        return [Told(self._next(), text=text, left_out=min(left_out, _MOST_COUNTED))] if text or left_out else []

    def _next(self) -> int:
        self._number += 1
        return self._number


class DirectReporter(Reporter):
    """Hands each report on where it is told: at once, on that thread, and as often as it is told.

    What the listener raises is its own affair.
    """

    def __init__(self, listener: Callable[[Report], None]) -> None:
        self._listener = listener

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self.tell(Progress(done=_number(done, 0.0), total=_positive(total), message=message))

    def emit(self, text: str | bytes) -> None:
        self.tell(Output(text=text.decode(errors="replace") if isinstance(text, bytes) else str(text)))

    def tell(self, report: Report) -> None:
        """Hand on a report."""
        with suppress(Exception):
            self._listener(report)


class ScrubbingReporter(Reporter):
    """Takes out of what one call tells what nobody may read, before another reporter has it.

    What it puts out is one stream, until `end`. Progress does not wait for what that holds back: no bar stands still.
    """

    def __init__(self, reporter: Reporter, scrubber: Scrubber) -> None:
        self._reporter = reporter
        self.scrubber = scrubber
        self._output = ScrubbedText(scrubber, reporter.emit)

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._reporter.progress(done, total, None if message is None else scrubbed_text(self.scrubber, str(message)))

    def emit(self, text: str | bytes) -> None:
        self._output.put(text)

    def end(self) -> None:
        """Put out what was held back: the call is over."""
        self._output.end()


@contextmanager
def telling(
    context: ExecutionContext, reporter: Reporter | None, scrubber: Scrubber | None
) -> Iterator[ExecutionContext]:
    """While a call runs, its context tells `reporter` what its body tells, without the secrets; so do those that it makes."""
    if reporter is None:
        yield context
    elif not scrubber or (isinstance(reporter, ScrubbingReporter) and reporter.scrubber is scrubber):
        yield context.reporting_to(reporter)
    else:
        scrubbing = ScrubbingReporter(reporter, scrubber)
        token = REPORTER.set(scrubbing)
        try:
            yield context.reporting_to(scrubbing)
        finally:
            REPORTER.reset(token)
            scrubbing.end()


def _number(value: Any, otherwise: float) -> float:
    """A tool must not fail for what it says of its progress."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if math.isfinite(number) else otherwise


def _positive(value: Any) -> float | None:
    number = _number(value, 0.0)
    return number if number > 0 else None
