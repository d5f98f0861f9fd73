"""Takes secrets out of a stream on its way into files. The standard library alone: supervisors load little."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

REDACTED = b"[redacted]"

_PROBE_BYTES = 16
"""So much of what may begin a form is looked at first: nearly always it begins none, and the rest need not be copied."""


class Withholding:
    """Replaces `forms`, of those that begin at one place the longest, also where one comes in pieces.

    What may be the beginning of one is held back until it is known, and no more than that: whoever waits for a prompt sees it.
    `found_in` says which of them are in some data, for those who know a faster way than to look for one after the other.
    """

    def __init__(self, forms: Sequence[bytes] = (), found_in: Callable[[bytes], Iterable[bytes]] | None = None) -> None:
        self._forms = sorted({form for form in forms if form})
        self._found_in = found_in or (lambda data: (form for form in self._forms if form in data))
        self._longest = max(map(len, self._forms), default=1)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be written of the stream up to the end of `data`."""
        if not self._forms:
            return data
        data = self._held + data
        there = self._there(data)
        parts, at, end = list[bytes](), 0, self._doubtful(data, 0)
        for match in there.finditer(data) if there else ():
            if match.start() >= end:
                break
            parts += data[at : match.start()], REDACTED
            at = match.end()
            if at > end:  # what was in doubt there is out of it
                end = self._doubtful(data, at)
        self._held = data[end:]
        return b"".join((*parts, data[at:end]))

    def rest(self) -> bytes:
        """What was held back, at the end of the stream."""
        data, self._held = self._held, b""
        there = self._there(data)
        return there.sub(REDACTED, data) if there else data

    def _there(self, data: bytes) -> re.Pattern[bytes] | None:
        """What finds those forms that are in `data`: nearly never any, which is seen much faster than by a search."""
        there = sorted(self._found_in(data), key=len, reverse=True)
        return re.compile(b"|".join(map(re.escape, there))) if there else None

    def _doubtful(self, data: bytes, start: int) -> int:
        """Where from `start` on something begins that more data may make a form, or a longer one."""
        for at in range(max(start, len(data) - self._longest + 1), len(data)):
            if self._is_beginning(data[at : at + _PROBE_BYTES]) and self._is_beginning(data[at:]):
                return at
        return len(data)

    def _is_beginning(self, data: bytes) -> bool:
        """Whether a form goes on after `data`. Those that do follow it in their order, at once."""
        following = bisect_right(self._forms, data)
        return following < len(self._forms) and self._forms[following].startswith(data)
