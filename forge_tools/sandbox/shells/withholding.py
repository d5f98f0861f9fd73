"""Takes secrets out of a stream on its way into files. The standard library alone: supervisors load little."""

import re
from collections.abc import Sequence

REDACTED = b"[redacted]"


class Withholding:
    """Replaces `forms`, of those that begin at one place the longest, also where one comes in pieces.

    What may be the beginning of one is held back until it is known, and no more than that: whoever waits for a prompt sees it.
    """

    def __init__(self, forms: Sequence[bytes] = ()) -> None:
        self._forms = sorted({form for form in forms if form}, key=lambda form: (-len(form), form))
        self._search = re.compile(b"|".join(map(re.escape, self._forms)))
        self._firsts = (
            re.compile(b"[" + b"".join(re.escape(form[:1]) for form in self._forms) + b"]") if self._forms else None
        )
        self._longest = max(map(len, self._forms), default=0)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be written of the stream up to the end of `data`."""
        if self._firsts is None:
            return data
        data = self._held + data
        clean, at = self._without(data, self._doubtful(data, max(0, len(data) - self._longest + 1)))
        end = self._doubtful(data, max(at, len(data) - self._longest + 1))
        self._held = data[end:]
        return clean + data[at:end]

    def rest(self) -> bytes:
        """What was held back, at the end of the stream."""
        data, self._held = self._held, b""
        if self._firsts is None:
            return data
        clean, at = self._without(data, len(data))
        return clean + data[at:]

    def _without(self, data: bytes, end: int) -> tuple[bytes, int]:
        """Copy `data` as far as the last form that begins before `end`; how far that is."""
        parts, at = list[bytes](), 0
        if any(form in data for form in self._forms):  # nearly never, and seen much faster than by a search
            for match in self._search.finditer(data):
                if match.start() >= end:
                    break
                parts += data[at : match.start()], REDACTED
                at = match.end()
        return b"".join(parts), at

    def _doubtful(self, data: bytes, start: int) -> int:
        """Where from `start` on something begins that more data may make a form, or a longer one."""
        if self._firsts is not None:
            for match in self._firsts.finditer(data, start):
                tail = data[match.start() :]
                if any(len(form) > len(tail) and form.startswith(tail) for form in self._forms):
                    return match.start()
        return len(data)
