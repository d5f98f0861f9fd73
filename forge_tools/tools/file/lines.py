"""Lines of a file of any size: counted, cut and taken from chunks of UTF-8 with bounded memory."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from forge_tools.tools.file.text import eol_name

MAX_LINE_CHARS = 2000
"""Characters of one line that are shown."""

_CONTINUATION = bytes(range(0x80, 0xC0))
_CONTROL = bytes((*set(range(0x20)) - set(b"\t\n\r"), 0x7F))
_LEAD = re.compile(rb"[^\x80-\xbf]")
_KEPT_BYTES = 4 * (MAX_LINE_CHARS + 2)


class Line(NamedTuple):
    """A line without its end. `start` characters before `text` and `hidden` after it are not shown."""

    text: str
    start: int = 0
    hidden: int = 0


@dataclass(slots=True)
class Count:
    """What a pass over a whole file counts."""

    newlines: int = 0
    crlf: int = 0
    chars: int = 0
    last: bytes = b""

    def add(self, chunk: bytes) -> None:
        if not chunk:
            return
        self.newlines += chunk.count(b"\n")
        if b"\r" in chunk or self.last == b"\r":  # to look for one byte is ten times as fast as for two
            self.crlf += chunk.count(b"\r\n") + (self.last == b"\r" and chunk[:1] == b"\n")
        self.chars += characters(chunk)
        self.last = chunk[-1:]

    @property
    def lines(self) -> int:
        return self.newlines + (self.last not in (b"", b"\n"))

    @property
    def eol(self) -> str | None:
        return eol_name(self.newlines, self.crlf)


def characters(utf8: bytes) -> int:
    """Count the characters that start in these bytes."""
    return len(utf8 if utf8.isascii() else utf8.translate(None, _CONTINUATION))


def lines_from(chunks: Iterable[bytes], first: int, column: int = 0) -> Iterator[Line]:
    """Yield the lines from number `first` (1-based) on; of the first of them only what follows `column` characters."""
    skip = first - 1
    line, is_new = _Line(column), not column
    for chunk in chunks:
        start = 0
        if skip:
            newlines = chunk.count(b"\n")
            start = 0 if newlines < skip else _after_newline(chunk, skip)
            skip = max(0, skip - newlines)
            if not start:
                continue
        last = chunk.rfind(b"\n")
        if is_new and last >= start and max(map(len, chunk[start:last].split(b"\n"))) <= MAX_LINE_CHARS:
            text = chunk[start:last].decode("utf-8", "replace")  # all at once: a line end is no part of any character
            yield from (Line(piece.removesuffix("\r")) for piece in text.split("\n"))
            start = last + 1
        while (end := chunk.find(b"\n", start)) >= 0:
            if is_new and end - start <= MAX_LINE_CHARS:  # nearly every line: nothing to assemble
                yield Line(chunk[start:end].removesuffix(b"\r").decode("utf-8", "replace"))
            else:
                line.add(chunk[start:end])
                yield line.finish(is_terminated=True)
                line, is_new = _Line(), True
            start = end + 1
        if start < len(chunk):
            line.add(chunk[start:])
            is_new = False
    if line.size:
        yield line.finish(is_terminated=False)


def plain_lines(utf8: bytes, first: int, count: int) -> tuple[list[str], bool]:
    """Take lines of a whole file that is UTF-8 without control characters; say whether more follow.

    Else, or if one of the lines is long, there are none.
    """
    if len(utf8.translate(None, _CONTROL)) < len(utf8):
        return [], False
    try:
        text = utf8.decode()
    except UnicodeDecodeError:
        return [], False
    if "\r" in text and "\r" in (text := text.replace("\r\n", "\n")):
        return [], False
    last = min(first - 1 + count, len(text))
    lines = text.split("\n", last)
    rest = lines.pop()
    has_more = bool(rest) and len(lines) == last
    if rest and not has_more:  # the file does not end with a line end
        lines.append(rest)
    wanted = lines[first - 1 :]
    return ([], False) if max(map(len, wanted), default=0) > MAX_LINE_CHARS else (wanted, has_more)


def tail_start(read: Callable[[int, int], bytes], begin: int, end: int, count: int, chunk_bytes: int) -> int:
    """Find where the last `count` lines of the bytes from `begin` to `end` start, reading backwards."""
    wanted = count + 1 if read(end - 1, 1) == b"\n" else count
    position = end
    while position > begin:
        size = min(chunk_bytes, position - begin)
        position -= size
        chunk = read(position, size)
        newlines = chunk.count(b"\n")
        if newlines >= wanted:
            return position + _after_newline(chunk, newlines - wanted + 1)
        wanted -= newlines
    return begin


def last_lines(chunks: Iterable[bytes], count: int) -> list[Line]:
    """Take the last `count` lines of a stream that cannot be read backwards."""
    return list(deque(lines_from(chunks, 1), maxlen=count))


class _Line:
    """One line while its pieces arrive: what may be shown is kept, the rest is counted."""

    def __init__(self, skip: int = 0) -> None:
        self.size = 0
        self._to_skip = skip
        self._skipped = 0
        self._kept = bytearray()
        self._dropped = 0
        self._last = b""

    def add(self, piece: bytes) -> None:
        if not piece:
            return
        self.size += len(piece)
        self._last = piece[-1:]
        if self._skipped < self._to_skip or (self._skipped and not self._kept):
            piece = self._skip(piece)
        room = max(0, _KEPT_BYTES - len(self._kept))
        self._kept += piece[:room]
        self._dropped += characters(piece[room:])

    def finish(self, *, is_terminated: bool) -> Line:
        text = self._kept.decode("utf-8", "replace")
        hidden = max(0, len(text) - MAX_LINE_CHARS) + self._dropped
        if is_terminated and self._last == b"\r":
            text, hidden = (text, hidden - 1) if hidden else (text.removesuffix("\r"), 0)
        return Line(text[:MAX_LINE_CHARS], self._skipped, hidden)

    def _skip(self, piece: bytes) -> bytes:
        """Drop the characters before the column, and the rest of a character that a chunk's end cut."""
        missing = self._to_skip - self._skipped
        count = characters(piece)
        if count <= missing:
            self._skipped += count
            return b""
        for index, match in enumerate(_LEAD.finditer(piece)):
            if index == missing:
                self._skipped += missing
                return piece[match.start() :]
        return b""


def _after_newline(chunk: bytes, number: int) -> int:
    """Return the position after the newline of that number (1-based)."""
    position = 0
    for _ in range(number):
        position = chunk.index(b"\n", position) + 1
    return position
