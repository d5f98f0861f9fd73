"""A body's reports that have not been taken yet: bounded, and never in the way of the body."""

import codecs
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from forge_tools.model.calls import ExecutionContext
from forge_tools.model.scope import SCOPE, CallScope, Output, Progress, Report, Reporter, Stream, Told
from forge_tools.sandbox.processes.output import ScrubbedText, scrubbed_text
from forge_tools.sandbox.processes.streams import plain
from forge_tools.secrets.scrubber import Scrubber

PART_BYTES = 16_384
"""How much output between two takes is kept of its beginning, and again of its end."""

SWITCH_BYTES = 128
"""The cost of switching to another stream, or level: each stretch of one is a row."""

MOST_BYTES = 1 << 20
"""The limit for the output of one attempt; after that, only the end is kept."""

MESSAGE_CHARS = 500

ROWS_PER_STEP = 500
"""After every so many rows of output, the rate halves again: a call that writes for days would have thousands."""

_MOST_COUNTED = 1 << 53  # a child may claim any number, but a column holds 63 bits

_Source = tuple[Stream, int | None]
"""The stream, and the level of a log message."""


class ReportBuffer(Reporter):
    """One attempt's reports. Its body reports from any thread; the holder takes them, at most every `interval` seconds.

    `news` is called, on the reporting thread, when the buffer stops being empty: it must not block. Between two takes
    the newest progress replaces older, and output is cut in its middle.
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
        self._lock = threading.RLock()  # a signal handler, or a finalizer, may print while this thread holds it
        self._is_closed = False
        self._is_told = False
        self._progress: tuple[float, float | None, str | None] | None = None
        self._head = _Stretches()
        self._tail = _Stretches()
        self._left_out = 0
        self._is_split = False
        self._room = MOST_BYTES
        self._due = 0.0
        self._rows = 0
        self._numbers = count(1)
        self._decoders: dict[Stream, Any] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether anything has not been taken."""
        return self._progress is not None or bool(self._head.parts or self._tail.parts or self._left_out)

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        if self._is_closed:
            return
        text = None if message is None else str(message)[:MESSAGE_CHARS]
        with self._lock:
            before = self._progress[0] if self._progress else 0.0
            self._progress = _number(done, before), _positive(total), text
        self._tell()

    def emit(self, text: str | bytes, stream: Stream = "output", level: int | None = None) -> None:
        if self._is_closed or not text:
            return
        if isinstance(text, bytes | bytearray | memoryview):
            data = bytes(text)
        else:
            data = str(text).encode("utf-8", "backslashreplace")
        with self._lock:
            self._add(data, (stream, level))
        self._tell()

    def pass_on(self, told: Told) -> None:
        if told.done is not None:
            self.progress(told.done, told.total, told.text)
            return
        if told.left_out > 0 and not self._is_closed:
            with self._lock:
                self._skip(told.left_out)
        self.emit(told.text or "", told.stream, told.level)
        self._tell()

    def take(self, *, is_urgent: bool = False) -> list[Told]:
        """Return what is due now, in order. Progress always is; output is limited in rate, unless it is urgent."""
        with self._lock:
            now = self._clock()
            told = self._take_output() if is_urgent or now >= self._due else []
            if told:
                self._due = now + self._interval
            told += self._take_progress()
            self._is_told = self.is_waiting
            return told

    def close(self) -> list[Told]:
        """Take the rest; later reports are discarded."""
        with self._lock:
            self._is_closed = True
            return [*self._take_output(is_last=True), *self._take_progress()]

    def silence(self) -> None:
        """Discard everything, now and later, in a process that takes nothing."""
        self._is_closed = True

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._news()

    def _add(self, data: bytes, of: _Source) -> None:
        room = 0 if self._is_split else min(PART_BYTES, self._room - PART_BYTES) - self._head.size
        if room > 0:
            self._head.add(data[:room], of)
            data = data[room:]
        if data:
            self._is_split = True
            self._tail.add(data[-PART_BYTES:], of)
            self._left_out += max(0, len(data) - PART_BYTES) + self._tail.cut(self._tail.size - PART_BYTES)

    def _skip(self, count: int) -> None:
        """Leave a gap here, and drop what was kept since the last one."""
        self._is_split = True
        self._left_out += count + self._tail.cut(self._tail.size)

    def _take_progress(self) -> list[Told]:
        progress, self._progress = self._progress, None
        return [] if progress is None else [Told(next(self._numbers), *progress)]

    def _take_output(self, *, is_last: bool = False) -> list[Told]:
        """Take all; once there is no room for that, all but the end, which stays here for the last take."""
        if not (self._head.parts or self._tail.parts or self._left_out or (is_last and self._decoders)):
            return []
        is_full = not is_last and self._head.size + self._tail.size > self._room - PART_BYTES
        told = self._take_text(is_last=is_last, keeps_end=is_full)
        self._rows += bool(told)
        if is_full or (told and self._rows % ROWS_PER_STEP == 0):
            self._interval *= 2
        return told

    def _take_text(self, *, is_last: bool, keeps_end: bool) -> list[Told]:
        head, self._head = self._head, _Stretches()
        tail, self._tail = (_Stretches(), self._tail) if keeps_end else (self._tail, _Stretches())
        self._room -= head.size + tail.size
        self._is_split = keeps_end
        if not self._left_out:
            for part in tail.parts:
                head.add(part.data, part.of)
            return self._told(head, is_last=is_last)
        told = self._told(head)
        left_out = self._close_gap(self._tail if keeps_end else tail)
        return [*told, *self._told(tail, left_out, is_last=is_last)]

    def _close_gap(self, after: "_Stretches") -> int:
        """Return how much is missing before `after`, with the partial characters on both sides."""
        left_out = self._left_out + sum(len(decoder.getstate()[0]) for decoder in self._decoders.values())
        self._decoders, self._left_out = {}, 0
        return left_out + after.align()

    def _told(self, taken: "_Stretches", left_out: int = 0, *, is_last: bool = False) -> list[Told]:
        """Return a row for each stretch; the first one, or a separate one, states what is missing."""
        ends = {part.of[0]: part for part in taken.parts} if is_last else {}
        told: list[Told] = []
        for part in taken.parts:
            text = self._decoded(bytes(part.data), part.of[0], is_last=ends.get(part.of[0]) is part)
            told += self._row(text, part.of, 0 if told else left_out)
        for stream in self._decoders.keys() - ends.keys() if is_last else ():
            told += self._row(self._decoded(b"", stream, is_last=True), (stream, None))
        return told or self._row("", ("output", None), left_out)

    def _decoded(self, data: bytes, stream: Stream, *, is_last: bool = False) -> str:
        """Hold back the first bytes of an incomplete character."""
        decoder = self._decoders.get(stream)
        if decoder is None:
            decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        return plain(decoder.decode(data, is_last))

    def _row(self, text: str, of: _Source, left_out: int = 0) -> list[Told]:
        if not (text or left_out):
            return []
        return [Told(next(self._numbers), None, None, text, min(left_out, _MOST_COUNTED), *of)]


class _Stretch(NamedTuple):
    data: bytearray
    of: _Source


class _Stretches:
    """Output in order. `size` is in bytes, including the cost of switches."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: deque[_Stretch] = deque()
        self.size = 0

    def add(self, data: bytes | bytearray, of: _Source) -> None:
        if self.parts and self.parts[-1].of == of:
            self.parts[-1].data.extend(data)
        else:
            self.size += SWITCH_BYTES if self.parts else 0
            self.parts.append(_Stretch(bytearray(data), of))
        self.size += len(data)

    def cut(self, excess: int) -> int:
        """Drop that much of the beginning; return how many bytes of output that was."""
        given_up = 0
        while excess > 0 and self.parts:
            part = self.parts[0]
            count = min(excess, len(part.data))
            freed = count
            del part.data[:count]
            if not part.data:
                self.parts.popleft()
                freed += SWITCH_BYTES if self.parts else 0
            self.size -= freed
            excess -= freed
            given_up += count
        return given_up

    def align(self) -> int:
        """Begin with a whole character; return how many bytes of a partial one were dropped."""
        if not self.parts:
            return 0
        data = self.parts[0].data
        start = next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
        del data[:start]
        self.size -= start
        return start


class DirectReporter(Reporter):
    """Passes each report on at once, on the reporting thread; a listener that fails stops nothing."""

    def __init__(self, listener: Callable[[Report], None]) -> None:
        self._listener = listener

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self.tell(Progress(done=_number(done, 0.0), total=_positive(total), message=message))

    def emit(self, text: str | bytes, stream: Stream = "output", level: int | None = None) -> None:
        said = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        self.tell(Output(text=said, stream=stream, level=level))

    def tell(self, report: Report) -> None:
        with suppress(Exception):
            self._listener(report)


class ScrubbingReporter(Reporter):
    """Removes secrets from one call's reports before another reporter gets them.

    Output is one text for each stream, until `end`; each log message is complete. Progress does not wait for text that
    is held back, so no progress bar stalls.
    """

    def __init__(self, reporter: Reporter, scrubber: Scrubber) -> None:
        self._reporter = reporter
        self.scrubber = scrubber
        self._streams: dict[Stream, ScrubbedText] = {}

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._reporter.progress(done, total, None if message is None else scrubbed_text(self.scrubber, str(message)))

    def emit(self, text: str | bytes, stream: Stream = "output", level: int | None = None) -> None:
        if stream == "log":
            self._reporter.emit(scrubbed_text(self.scrubber, str(text)), stream, level)
            return
        known = self._streams.get(stream)
        if known is None:
            write = partial(self._reporter.emit, stream=stream)
            known = self._streams.setdefault(stream, ScrubbedText(self.scrubber, write))
        known.put(text)

    def end(self) -> None:
        """Send what was held back, at the end of the call."""
        for text in tuple(self._streams.values()):
            text.end()


@contextmanager
def in_scope(context: ExecutionContext, scope: CallScope, scrubber: Scrubber | None) -> Iterator[ExecutionContext]:
    """While a call runs, bind its context and those it creates to its scope, and remove secrets from their reports."""
    reporter, scrubbing = scope.reporter, None
    is_scrubbed = isinstance(reporter, ScrubbingReporter) and reporter.scrubber is scrubber
    if scrubber and reporter is not None and not is_scrubbed:
        scope.reporter = scrubbing = ScrubbingReporter(reporter, scrubber)
    token = SCOPE.set(scope)
    try:
        yield context.within(scope)
    finally:
        SCOPE.reset(token)
        if scope.catch_up is not None:
            scope.catch_up()
        scope.is_over = True
        scope.task = None  # a task holds its context, and that the scope: only the collector could free all three
        if scrubbing is not None:
            scrubbing.end()


def _number(value: Any, otherwise: float) -> float:
    """Convert a tool's progress value; an invalid one must not make the tool fail."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if math.isfinite(number) else otherwise


def _positive(value: Any) -> float | None:
    number = _number(value, 0.0)
    return number if number > 0 else None
