"""Takes secrets out of a stream as it passes. The standard library alone: supervisors of shells load little."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from forge_tools.sandbox.terminals import undecided, unseen

REDACTED = b"[redacted]"

MOST_UNSEEN = 4096
"""Bytes of escapes in the midst of one secret; more do not hold back what may be the beginning of one."""

_PROBE_BYTES = 16
"""So much of what may begin a form is looked at first: nearly always it begins none, and the rest need not be copied."""

_Span = tuple[int, int]


class Withholding:
    """Replaces `forms`, of those that begin at one place the longest, also where one comes in pieces.

    They are found in the bytes as they are, and as a terminal shows them: without escapes, and with line ends of any kind.
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
        return self._released(self._held + data, is_over=False) if self._forms else data

    def rest(self) -> bytes:
        """What was held back, at the end of the stream."""
        return self._released(self._held, is_over=True)

    def _released(self, data: bytes, *, is_over: bool) -> bytes:
        readings, decided = self._readings(data, is_over=is_over)
        parts, at = list[bytes](), 0
        end = len(data) if is_over else self._doubtful(readings, 0, decided)
        while (span := _first(readings, at)) is not None and span[0] < end:
            parts += data[at : span[0]], REDACTED
            at = span[1]
            if at > end:  # what was in doubt there is out of it
                end = self._doubtful(readings, at, decided)
        self._held = data[end:]
        return b"".join((*parts, data[at:end]))

    def _readings(self, data: bytes, *, is_over: bool) -> tuple[list["_Reading"], int]:
        """The data as they are and, where that is something else, as a terminal shows them; and how far that is sure."""
        readings = [_Reading(data, (), self._there)]
        if b"\x1b" not in data and b"\r" not in data:
            return readings, len(data)
        tail = max(0, len(data) - MOST_UNSEEN)
        decided = len(data) if is_over else tail + undecided(data[tail:])
        known = data if decided == len(data) else data[:decided]
        return [*readings, _Reading(known, unseen(known), self._there)], decided

    def _there(self, data: bytes) -> re.Pattern[bytes] | None:
        """What finds those forms that are in `data`: nearly never any, which is seen much faster than by a search."""
        there = sorted(self._found_in(data), key=len, reverse=True)
        return re.compile(b"|".join(map(re.escape, there))) if there else None

    def _doubtful(self, readings: Sequence["_Reading"], start: int, decided: int) -> int:
        """Where from `start` on something begins that more data may make a form, or a longer one."""
        data, shown = readings[0], readings[-1]
        certainly = max(start, shown.outside(self._begun(data, start)))
        if data is shown:
            return certainly
        end = max(start, min(certainly, self._begun(shown, start), decided))
        is_kept = len(data.text) - end <= self._longest + MOST_UNSEEN
        return end if is_kept else certainly

    def _begun(self, reading: "_Reading", start: int) -> int:
        """Where from `start` on the beginning of a form is all that follows; the end of all if nowhere."""
        text = reading.text
        for at in range(max(reading.position(start), len(text) - self._longest + 1), len(text)):
            if self._is_beginning(text[at : at + _PROBE_BYTES]) and self._is_beginning(text[at:]):
                return reading.place(at)
        return reading.size

    def _is_beginning(self, data: bytes) -> bool:
        """Whether a form goes on after `data`. Those that do follow it in their order, at once."""
        following = bisect_right(self._forms, data)
        return following < len(self._forms) and self._forms[following].startswith(data)


class _Reading:
    """Some data without the gaps in them: what there is to see, what of it is secret, and where in the data that is."""

    def __init__(self, data: bytes, gaps: Sequence[_Span], there: Callable[[bytes], re.Pattern[bytes] | None]) -> None:
        self.size = len(data)
        self._gaps = gaps
        self._missing = [0, *accumulate(end - start for start, end in gaps)]
        self._positions = [start - before for (start, _), before in zip(gaps, self._missing, strict=False)]
        kept = zip((0, *(end for _, end in gaps)), (*(start for start, _ in gaps), len(data)), strict=True)
        self.text = b"".join(data[start:end] for start, end in kept) if gaps else data
        self._forms = there(self.text)
        self._found: _Span | None = (-1, -1)

    def place(self, position: int) -> int:
        """Where in the data that byte of the text is."""
        return position + self._missing[bisect_right(self._positions, position)]

    def position(self, place: int) -> int:
        """Where in the text the first byte is that is at that place of the data or behind it."""
        before = bisect_left(self._gaps, (place, 0))
        if before and place < self._gaps[before - 1][1]:
            return self._positions[before - 1]
        return place - self._missing[before]

    def outside(self, place: int) -> int:
        """Where the gap begins that this place of the data is in the midst of, or else that place."""
        before = bisect_left(self._gaps, (place, 0))
        return self._gaps[before - 1][0] if before and place < self._gaps[before - 1][1] else place

    def next(self, place: int) -> _Span | None:
        """Where in the data the first form begins that does so there or behind, and where it ends."""
        if self._forms is not None and self._found is not None and self._found[0] < place:
            match = self._forms.search(self.text, self.position(place))
            self._found = (self.place(match.start()), self.place(match.end() - 1) + 1) if match else None
        return self._found if self._forms is not None else None


def _first(readings: Iterable[_Reading], place: int) -> _Span | None:
    spans = [span for reading in readings if (span := reading.next(place)) is not None]
    return min(spans, key=lambda span: (span[0], -span[1]), default=None)
