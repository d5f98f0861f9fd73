"""Output in transit: without secrets, and without what a terminal interprets instead of showing.

Standard library only: supervisors of shells load little.
"""

import re
from collections.abc import Iterable

from forge_tools.secrets.readings import ESCAPE, Readings, first

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""A character that controls a terminal, or has no effect."""

_CONTROLS = bytes(code for code in range(128) if CONTROL.match(chr(code)))
_ESCAPES = re.compile(ESCAPE)
REDACTED = b"[redacted]"  # as `secret_names` has it, whose package would bring Pydantic along


def is_plain(data: bytes) -> bool:
    """Whether it has no control characters: a test at memory speed, so that gigabytes of plain output cost next to nothing."""
    return len(data.translate(None, _CONTROLS)) == len(data)


def plain(text: str) -> str:
    """Turn whole lines of a terminal's output into what a person would finally see."""
    if not CONTROL.search(text):
        return text
    text = _ESCAPES.sub("", text)
    if "\r" in text:
        # A last one belongs to a line end of Windows, and rewrites nothing.
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class StreamScrubber:
    """Replaces `forms`, the longest of those that begin at one place, even if one arrives in pieces.

    They are found in all `Readings` of the stream, such as the one without line ends and terminal escapes.
    Only what may be the beginning of a form is held back, until it is known, so a prompt is visible at once.
    """

    def __init__(self, forms: Iterable[bytes] = ()) -> None:
        self._readings = Readings(forms)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be written of the stream up to the end of `data`."""
        return self._released(self._held + data, is_over=False) if self._readings.forms else data

    def rest(self) -> bytes:
        """Return what was held back, at the end of the stream."""
        return self._released(self._held, is_over=True)

    def _released(self, data: bytes, *, is_over: bool) -> bytes:
        readings, parts, at = self._readings.of(data), list[bytes](), 0
        end = len(data) if is_over else self._doubtful(data, 0)
        while (span := first(readings, at)) is not None and span[0] < end:
            if not is_over and any(reading.may_grow(span) for reading in readings):
                end = span[0]
                break
            parts += data[at : span[0]], REDACTED
            at = span[1]
            if at > end:  # what was in doubt there no longer is
                end = self._doubtful(data, at)
        self._held = data[end:]
        return b"".join((*parts, data[at:end]))

    def _doubtful(self, data: bytes, start: int) -> int:
        """Return where from `start` on something begins that more data may turn into a form, or a longer one."""
        start = max(start, len(data) - self._readings.most_held)
        return start + self._readings.begun(data[start:])
