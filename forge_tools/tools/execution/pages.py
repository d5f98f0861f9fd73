"""Slices of a shell's output as lines, and how many of them there is room for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from forge_tools.sandbox.processes.streams import plain
from forge_tools.sandbox.shells.folder import Output, Piece

SLICE_BYTES = 1 << 20
"""How much is looked at in one go."""

_CONTROLS = bytes(set(range(32)) - set(b"\t\n")) + b"\x7f"
_LONGEST_CHARACTER = 4  # bytes: less could hold none, and then there would be no going on
_LONGEST_ESCAPE = 256
_UNFINISHED_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]*|[ -/]*)\Z")


class Line(NamedTuple):
    """A line as people read it, with the line end where it has one, and the bytes of the stream that it stands for.

    One that `is_gap` says that those bytes are not kept any more.
    """

    start: int
    end: int
    text: str
    is_gap: bool = False


@dataclass(slots=True)
class Slice:
    """Lines that follow one another. `next` is where the next slice begins."""

    next: int
    lines: list[Line] = field(default_factory=list)
    has_more: bool = False


def read_slice(output: Output, since: int, limit: int, size: int, *, is_over: bool, room: int = 0) -> Slice:
    """Read from a position on, of a stream of that size. What is not whole at the end waits, unless no more can come.

    Plain lines that all fit into `room` characters may come as one: that saves most of the time of a page.
    """
    before = max(0, since - 3)
    read = output.read(before, limit + since - before)
    pieces = _from(read, since)
    has_all = sum(len(piece.data) for piece in read) < limit + since - before
    end = max(size, pieces[-1].end if pieces else 0) if has_all else pieces[-1].end
    found = Slice(max(end, min(since, size)), has_more=not has_all and end < size)
    at = since if not pieces else min(since, pieces[0].start)
    if pieces and pieces[-1].end == end and (found.has_more or not is_over):
        pieces[-1] = _whole(pieces[-1])
        found.next = end = pieces[-1].end
    for piece in [*pieces, Piece(end, b"")]:
        if piece.start > at:
            found.lines.append(_gap(at, piece.start))
        at = piece.end
        found.lines += _lines(piece, 0 if found.has_more else room)
    if found.has_more and len(found.lines) > 1 and not found.lines[-1].text.endswith("\n"):
        found.next = found.lines.pop().start  # the rest of the line comes with the next slice
    return found


def fitting(lines: Sequence[Line], room: int) -> int:
    """Count the lines, from the first on, that there is room for."""
    used = 0
    for index, line in enumerate(lines):
        used += len(line.text)
        if used > room:
            return index
    return len(lines)


def head_of(line: Line, output: Output, room: int) -> Line:
    """Cut a line that is longer than all the room there is; the rest of it begins at the end of what is returned."""
    pieces = output.read(line.start, min(max(room, _LONGEST_CHARACTER), line.end - line.start))
    if not pieces or pieces[0].start != line.start:
        return line._replace(text=line.text[:room])
    part = _whole(pieces[0])
    part = part if part.data else pieces[0]
    return _lines(part)[0]


def _from(pieces: list[Piece], since: int) -> list[Piece]:
    """Leave out what is before a position; a character that it lies in counts as behind it."""
    if not pieces:
        return []
    first = pieces[0]
    cut = max(0, since - first.start)
    lead = next((cut - back for back in range(min(3, cut) + 1) if not _is_inside(first.data, cut - back)), cut)
    if lead < cut and lead + _length(first.data[lead]) > cut:
        cut = lead
    rest = [Piece(first.start + cut, first.data[cut:]), *pieces[1:]]
    return [piece for piece in rest if piece.data]


def _gap(start: int, end: int) -> Line:
    return Line(start, end, f"[{end - start:,} bytes are not kept any more]\n", is_gap=True)


def _is_inside(data: bytes, index: int) -> bool:
    return index < len(data) and 0x80 <= data[index] < 0xC0


def _length(lead: int) -> int:
    """How many bytes a character has that begins with this one."""
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _whole(piece: Piece) -> Piece:
    """Leave out the beginning of a character or an escape sequence at the end."""
    data = piece.data
    for back in range(1, min(3, len(data)) + 1):
        if not _is_inside(data, len(data) - back):
            data = data[:-back] if _length(data[-back]) > back else data
            break
    if unfinished := _UNFINISHED_ESCAPE.search(data[-_LONGEST_ESCAPE:]):
        data = data[: len(data) - len(unfinished[0])]
    return Piece(piece.start, data)


def _lines(piece: Piece, room: int = 0) -> list[Line]:
    lines, at = [], piece.start
    is_clean = len(piece.data.translate(None, _CONTROLS)) == len(piece.data)
    if is_clean and 0 < len(piece.data) <= room:
        return [Line(piece.start, piece.end, piece.data.decode("utf-8", "replace"))]
    for raw in piece.data.split(b"\n"):
        end = min(at + len(raw) + 1, piece.end)
        if end > at:
            text = raw.decode("utf-8", "replace")
            lines.append(Line(at, end, (text if is_clean else plain(text)) + ("\n" if end > at + len(raw) else "")))
        at = end
    return lines
