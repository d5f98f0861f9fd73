"""A command's output for a reader: without the secrets of its call, the middle omitted if it is too long."""

import codecs
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from types import MappingProxyType
from typing import Any

from forge_tools.sandbox.processes.streams import CONTROL, StreamScrubber, is_plain, plain
from forge_tools.sandbox.spools import Spool
from forge_tools.secrets.scrubber import CONCEALED, LEAST, Scrubber

_OTHERWISE = "; filter the output or write it to a file"
_MAX_HELD = 8192  # characters of an unfinished line or escape that may still change


def stream_scrubber(scrubber: Scrubber) -> StreamScrubber:
    return StreamScrubber(forms_in_streams(scrubber))


def forms_in_streams(scrubber: Scrubber | None) -> list[bytes]:
    """Return what to search for: secrets in all their forms, and what a terminal leaves of them."""
    forms = scrubber.forms if scrubber is not None else []
    left = (plain(_decoded(form)) for form in forms)  # it drops escapes and the line ends of Windows
    return list(dict.fromkeys((*forms, *(_encoded(text) for text in left if len(text) >= LEAST))))


def scrubbed_chunks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass a stream on without the secrets of the running call; return the same object if the call has none."""
    scrubber = CONCEALED.get()
    return _without(stream_scrubber(scrubber), chunks) if scrubber else chunks


def scrubbed_text(scrubber: Scrubber, text: str) -> str:
    """Copy a complete text without the secrets, as written or as a terminal shows them."""
    if not CONTROL.search(text):
        return scrubber.text(text)
    stream = stream_scrubber(scrubber)
    return _decoded(stream.feed(_encoded(text)) + stream.rest())


class ScrubbedText:
    """A text stream that several threads write to; `write` receives it without secrets, a part at a time.

    What may be the beginning of a secret is held back until more comes, or `end`. Then it continues as before.
    """

    def __init__(self, scrubber: Scrubber, write: Callable[[str], object]) -> None:
        self._scrubber = scrubber
        self._write = write
        self._lock, self._pid = threading.RLock(), os.getpid()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, text: str | bytes) -> None:
        """Write a part; a character may be split between parts if they are bytes."""
        data, rest = (bytes(text), "") if isinstance(text, bytes | bytearray | memoryview) else (b"", str(text))
        with self._alone():
            begun = self._decoder.decode(data, final=not data)
            self._pass_on(self._stream.feed(_encoded(begun + rest)))

    def end(self) -> None:
        """Write what was held back."""
        with self._alone():
            begun = self._decoder.decode(b"", final=True)
            self._pass_on(self._stream.feed(_encoded(begun)) + self._stream.rest())

    def _pass_on(self, clean: bytes) -> None:
        if clean:
            self._write(_decoded(clean))

    def _alone(self) -> AbstractContextManager[object]:
        """Return the lock, or a new one in a forked process, where nobody would release the old one."""
        if self._pid != os.getpid():
            self._lock, self._pid = threading.RLock(), os.getpid()
        return self._lock

    @cached_property
    def _stream(self) -> StreamScrubber:
        return stream_scrubber(self._scrubber)


async def _without(secrets: StreamScrubber, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        if clean := secrets.feed(chunk):
            yield clean
    if rest := secrets.rest():
        yield rest


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


class HeadTail:
    """Text of which at most `limit` characters are kept: 40 % from the head, the rest from the tail.

    If it is longer, up to `whole_bytes` of it go to a file as well, for an artifact.
    """

    def __init__(self, limit: int, whole_bytes: int = 0) -> None:
        self._limit = max(limit, 1)
        self._whole_bytes, self._whole_from = whole_bytes, limit
        self.whole: Spool | None = None
        """What is kept of a text that is longer than the limit, to be read once."""
        self._head: list[str] = []
        self._head_room = limit * 2 // 5
        self._tail: deque[str] = deque()
        self._tail_chars = 0
        self.chars = 0
        self.newlines = 0
        self._last = ""

    def add(self, text: str) -> None:
        if not text:
            return
        if self._whole_bytes and self.chars + len(text) > self._whole_from:
            self._spool_up(text)
        self.chars += len(text)
        self.newlines += text.count("\n")
        self._last = text[-1]
        if self._head_room:
            part = text[: self._head_room]
            self._head.append(part)
            self._head_room -= len(part)
            text = text[len(part) :]
        if text:
            self._tail.append(text[-self._limit :])
            self._tail_chars += len(self._tail[-1])
            while self._tail_chars - len(self._tail[0]) >= self._limit:
                self._tail_chars -= len(self._tail.popleft())

    def show(self, limit: int, kept: Mapping[str, str] = MappingProxyType({})) -> tuple[str, dict[str, Any]]:
        """Return the text within `limit` characters (at most the limit it was created with), and its metadata.

        `kept` is what `keep_text` returned of the whole.
        """
        head, tail = "".join(self._head), "".join(self._tail)
        if self.chars > limit:
            known = {"chars": self.chars, "newlines": self.newlines, "limit": limit}
            return shortened(head, head + tail, **known, kept=kept, otherwise=_OTHERWISE)
        lines = self.newlines + (self._last not in ("", "\n"))
        facts = {"truncated": False, "total_chars": self.chars, "total_lines": lines, "shown_lines": lines}
        return head + tail, facts

    def _spool_up(self, text: str) -> None:
        """Write to the file too; if there is no room, only what is in memory is kept."""
        try:
            if self.whole is None:
                self.whole = Spool(self._whole_bytes)
                self.whole.write("".join([*self._head, *self._tail]).encode())
            self.whole.write(text.encode())
        except OSError:
            self.whole, self._whole_bytes = None, 0


def shortened(
    head: str, tail: str, *, chars: int, newlines: int, limit: int, kept: Mapping[str, str], otherwise: str = ""
) -> tuple[str, dict[str, Any]]:
    """Keep 40 % of `limit` from the head of a text and the rest from its tail, marker included; return it and what was cut.

    `head` and `tail` are what there is of both ends, or the whole. Cuts move to a line end within 10 % of the limit. A
    limit too small for the marker gives only the marker.
    """
    lines = newlines + (not tail.endswith("\n"))
    # Where to cut depends on the length of the marker, which says where it was cut: so count on the longest one.
    longest = omissions(chars, lines, {"offset": lines, "column": chars}, kept, otherwise)
    form = next((at for at, marker in enumerate(longest) if len(marker) <= limit), -1)
    room, slack = max(0, limit - len(longest[form]) - 2), limit // 10
    end, start = room * 2 // 5, len(tail) - (room - room * 2 // 5)
    first = head[: head.rfind("\n", max(0, end - slack), end) + 1 or end]
    start = tail.find("\n", start, start + slack) + 1 or start
    last, column = tail[start:], len(first) - (first.rfind("\n") + 1)
    at = {"offset": first.count("\n") + 1} | ({"column": column} if column else {})
    omitted = newlines - first.count("\n") - last.count("\n") + (tail[start - 1 : start] != "\n")
    marker = omissions(chars - len(first) - len(last), omitted, at, kept, otherwise)[form]
    shown = sum(part.removesuffix("\n").count("\n") + 1 for part in (first, last) if part)
    facts: dict[str, Any] = {"truncated": True, "total_chars": chars, "total_lines": lines, "shown_lines": shown}
    if artifact := kept.get("artifact"):
        facts["next"] = {"tool": "Read", "file_path": artifact, **at}
    return "\n".join(part for part in (first.removesuffix("\n"), marker, last) if part), facts


def omissions(
    characters: int, lines: int, at: dict[str, int], kept: Mapping[str, str], otherwise: str = ""
) -> list[str]:
    """Return ways to say what is missing, the most informative first; `at` is the position, as Read takes it."""
    counts = f"{characters:,} characters ({lines:,} lines) omitted"
    if (artifact := kept.get("artifact")) is None:
        return [f"[... {counts}{otherwise} ...]", f"[... {counts} ...]"]
    where = ", ".join(f"{name}={value}" for name, value in at.items())
    return [
        f"[... {counts}; {kept.get('artifact_holds', 'full output')}: {artifact}, Read it with {where} ...]",
        f"[... {counts}; {artifact} ...]",
        f"[... {counts} ...]",
    ]


class TerminalText:
    """Passes the bytes of a terminal's output on to `add` as the text that a person would finally see.

    UTF-8, other bytes as U+FFFD; no colours or cursor movements; of a line rewritten with carriage returns the last
    state; other control characters as visible escapes. The secrets of the running call are removed before anything is
    counted or cut: half of one would not be found, and its replacement may be longer.
    """

    def __init__(self, add: Callable[[str], None]) -> None:
        self._add = add
        scrubber = CONCEALED.get()
        self._stream = stream_scrubber(scrubber) if scrubber else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._is_clean = True

    def feed(self, data: bytes) -> None:
        self._is_clean = self._is_clean and is_plain(data)
        text = self._held + self._decoder.decode(data)
        end = text.rfind("\n") + 1
        self._give(self._plain(text[:end]))
        self._hold(text[end:])

    def finish(self) -> None:
        self._give(self._plain(self._held + self._decoder.decode(b"", final=True)))
        self._held = ""
        if self._stream is not None and (rest := self._stream.rest()):
            self._add(rest.decode())

    def _give(self, text: str) -> None:
        if self._stream is not None:
            text = self._stream.feed(text.encode()).decode()
        if text:
            self._add(text)

    def _hold(self, rest: str) -> None:
        """Hold an unfinished line back: a carriage return may still replace it, an escape in it may be incomplete."""
        if len(rest) > _MAX_HELD:
            rest = self._plain(rest)
        if len(rest) > _MAX_HELD:
            self._give(rest)
            rest = ""
        self._held = rest
        self._is_clean = self._is_clean or not CONTROL.search(rest)

    def _plain(self, text: str) -> str:
        return text if self._is_clean else plain(text)
