"""What a search found, as records of a page, and the notes after them: whole records, within a budget."""

import base64
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from forge_tools.tools.builtin import counted
from forge_tools.tools.file.text import visible

MAX_LINE_BYTES = 4 << 20
"""A longer line of ripgrep's output (a match in a line of megabytes) is reported without its text."""

Wanted = Callable[[str], bool]
"""Returns whether a path was requested."""

Shown = Callable[[str], str]
"""Turns a path of the search program into the one people see."""

_SPARE = 10_000
_NOTE_ROOM = 320
_MAX_WARNING = 100
_MAX_WARNINGS = 20

_NAME = re.compile(rb"(?P<path>[^\0]+)\0(?P<count>)")
_COUNT = re.compile(rb"(?P<path>[^\0]+)\0(?P<count>\d+)\r?\n")
_SEARCHED = re.compile(rb"^(\d+) files? searched\r?$", re.MULTILINE)
_LINE_NUMBER = re.compile(rb'"line_number":(\d+)')
_PATH = re.compile(rb'^\{"type":"match","data":\{"path":(\{[^}]*\})')


class Page:
    """The records from `offset` on: at most `limit`, together at most `room` characters."""

    def __init__(self, *, offset: int, limit: int, room: int) -> None:
        self.records: list[str] = []
        self.seen = 0
        self.has_more = False
        self.offset = offset
        self._limit = limit
        self._room = room

    def add(self, record: str) -> bool:
        """Add the next record; False means that the page is full and another one follows."""
        if self.seen >= self.offset:
            if len(self.records) == self._limit or (self.records and self._room < len(record)):
                self.has_more = True
                return False
            self.records.append(record[: max(self._room, 1)] if len(record) > self._room else record)
            self._room -= len(record) + 1
        self.seen += 1
        return True

    @property
    def needed(self) -> int:
        """The number of records sufficient to fill it and to know that more follow."""
        return self.offset + self._limit + 1

    @property
    def next(self) -> dict[str, int] | None:
        """The arguments for the next page."""
        return {"offset": self.seen} if self.has_more else None


@dataclass(slots=True, kw_only=True)
class Notes:
    """The end of an answer. `total` is the number of all records; None if it is unknown.

    `in_all` states it in other words than a number and the unit.
    """

    page: Page
    unit: str
    total: int | None
    is_partial: bool
    in_all: str | None = None
    warnings: Sequence[str] = ()

    def facts(self) -> dict[str, Any]:
        """Return the same for programs."""
        facts: dict[str, Any] = {"shown_records": len(self.page.records), "truncated": self.page.has_more}
        if self.total is not None:
            facts["total_records"] = self.total
        if self.page.has_more:
            facts["next"] = self.page.next
        if self.is_partial:
            facts["partial"] = True
        if self.warnings:
            more = len(self.warnings) - _MAX_WARNINGS
            facts["warnings"] = [*self.warnings[:_MAX_WARNINGS], *([f"and {more:,} more"] if more > 0 else [])]
            facts["not_searched"] = len(self.warnings)
        return facts

    def lines(self) -> list[str]:
        page, notes = self.page, []
        known = "more" if self.total is None else counted(self.total, self.unit)
        if page.has_more:
            first, last = page.seen - len(page.records) + 1, page.seen
            notes.append(f"[{first:,}-{last:,} of {self.in_all or known}; continue with offset={last}]")
        elif page.seen and not page.records:
            are = "is" if page.seen == 1 else "are"
            notes.append(f"[nothing after offset {page.offset}: there {are} {counted(page.seen, self.unit)}]")
        if self.is_partial:
            notes.append("[stopped early: the call's time ran out; narrow path or pattern for the rest]")
        if self.warnings:
            more = f" and {len(self.warnings) - 1:,} more" if len(self.warnings) > 1 else ""
            notes.append(f"[not searched: {self.warnings[0][:_MAX_WARNING]}{more}]")
        return notes


def room_for_records(max_chars: int) -> int:
    """Return how much of an output is left for records after the notes."""
    return max(1, max_chars - min(_NOTE_ROOM, max_chars // 2))


class NameSink:
    """Reads `--null` output of files or counts, in any order, with the statistics at its end.

    `files` and `matches` (equal to files if there are no counts) count everything up to `enough` matches; only the
    first names by path are kept, as many as the page may need.
    """

    def __init__(
        self, page: Page, wanted: Wanted, shown: Shown, *, has_counts: bool, enough: int = sys.maxsize
    ) -> None:
        self.page = page
        self.searched: int | None = None
        self.files = 0
        self.matches = 0
        self.is_sure = True
        self._wanted = wanted
        self._shown = shown
        self._enough = enough
        self._entry = _COUNT if has_counts else _NAME
        self._rest = b""
        self._found: list[tuple[bytes, str, bytes]] = []

    def feed(self, data: bytes) -> bool:
        data, end = self._rest + data, 0
        for entry in self._entry.finditer(data):
            end = entry.end()
            path, count = entry.groups()
            name = path.decode("utf-8", "surrogateescape")
            if self._wanted(name):
                self.files += 1
                self.matches += int(count or 1)
                self._found.append((path.replace(b"/", b"\0"), name, count))
        self._rest = data[end:]
        if len(self._found) > 2 * self.page.needed + _SPARE:
            self._found = sorted(self._found)[: self.page.needed]
        return self.matches < self._enough

    def finish(self) -> None:
        """Fill the page."""
        if self.is_sure and (found := _SEARCHED.search(self._rest)):
            self.searched = int(found[1])
        for _, name, count in sorted(self._found):
            shown = self._shown(name)
            if not self.page.add(f"{shown}:{int(count)}" if count else shown):
                return

    def first(self) -> list[str]:
        """Return the names that the page may need, in its order."""
        return [name for _, name, _ in sorted(self._found)[: self.page.needed]]

    def counts(self) -> dict[str, bytes]:
        """Return the names found, with the number of matching lines if requested."""
        return {name: count for _, name, count in self._found}

    def keep(self, counts: Mapping[str, bytes]) -> None:
        """Drop all but these names; the total is then unknown."""
        found = sorted(self._found)[: self.page.needed]
        self._found = [(key, name, counts[name]) for key, name, _ in found if name in counts]
        self.files, self.is_sure = len(self._found), False


class Origin(NamedTuple):
    """Where the text of a record comes from: `digest` is None if no text of the file is shown."""

    name: str
    offset: int = 0
    length: int = 0
    digest: bytes | None = None


class MatchSink:
    """Reads `--json` output: matching lines and their context. Each record of the page has its origin."""

    def __init__(
        self, page: Page, wanted: Wanted, shown: Shown, *, max_columns: int, has_numbers: bool, has_context: bool
    ) -> None:
        self.page = page
        self.searched: int | None = None
        self.bytes_read: int | None = None
        self.files = 0
        self.matches = 0
        self.not_utf8 = 0
        self.is_sure = True
        self.origins: list[Origin] = []
        self._wanted = wanted
        self._shown = shown
        self._max_columns = max_columns
        self._has_numbers = has_numbers
        self._has_context = has_context
        self._rest = bytearray()
        self._head: bytes | None = None
        self._name: str | None = None
        self._raw_name = ""
        self._first = 0
        self._last: tuple[str, int] | None = None

    def feed(self, data: bytes) -> bool:
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._rest += data[start:end]
            start = end + 1
            if not self._line():
                return False
        self._rest += data[start:]
        if len(self._rest) > MAX_LINE_BYTES:
            self._head = self._head or bytes(self._rest[:8192])
            del self._rest[:-8192]
        return True

    def finish(self) -> None:
        """Nothing is left over: every message ends its line."""

    def keep(self, indexes: Sequence[int]) -> None:
        """Drop all records of the page but these; the total is then unknown."""
        self.page.records[:] = [self.page.records[index] for index in indexes]
        if not indexes:
            self.page.seen = 0
        self.is_sure, self.searched, self.bytes_read = False, None, None

    def _line(self) -> bool:
        line, head = bytes(self._rest), self._head
        self._rest.clear()
        self._head = None
        if head is not None:
            return self._oversized(head, line)
        message = json.loads(line)
        return self._take(message["type"], message["data"])

    def _take(self, kind: str, data: dict[str, Any]) -> bool:
        if kind == "begin":
            name = os.fsdecode(_raw(data["path"]))
            self._name = self._shown(name) if self._wanted(name) else None
            self._raw_name = name
            self.files += self._name is not None
            self._first = len(self.page.records)
        elif kind == "summary":
            self.searched, self.bytes_read = data["stats"]["searches"], data["stats"]["bytes_searched"]
        elif self._name is None:
            pass
        elif kind == "end" and data["binary_offset"] is not None:
            self.page.records[self._first :] = [f"{self._name}: binary file matches"]
            self.origins[self._first :] = [Origin(self._raw_name)]
        elif kind in ("match", "context"):
            self.matches += kind == "match"
            return self._record(self._name, kind == "match", data)
        return True

    def _record(self, name: str, is_match: bool, data: dict[str, Any]) -> bool:
        number = data["line_number"] or 0
        raw = _raw(data["lines"])
        text, codec = _decoded(raw)
        self.not_utf8 += codec != "utf-8" and self.page.seen >= self.page.offset
        column = len(raw[: data["submatches"][0]["start"]].decode(codec, "replace")) if data["submatches"] else 0
        mark = ":" if is_match else "-"
        shown = []
        for index, line in enumerate(text.removesuffix("\n").split("\n")):
            where = f"{name}{mark}{number + index}{mark}" if self._has_numbers else f"{name}{mark}"
            shown.append(where + self._cut(line.removesuffix("\r"), column if index == 0 else 0))
        group = self._separator(name, number)
        self._last = (name, number + len(shown))
        is_more = self.page.add(group + "\n".join(shown))
        if len(self.page.records) > len(self.origins):
            digest = blake2b(raw, digest_size=16).digest()
            self.origins.append(Origin(self._raw_name, data.get("absolute_offset", 0), len(raw), digest))
        return is_more

    def _separator(self, name: str, number: int) -> str:
        is_new_group = self._has_context and self._last is not None and self._last != (name, number)
        return "--\n" if is_new_group and self.page.records else ""

    def _cut(self, line: str, column: int) -> str:
        """Show at most `max_columns` characters of a line, those around the match."""
        width = self._max_columns
        if len(line) <= width:
            return visible(line)
        start = max(0, min(column - width // 3, len(line) - width))
        before = f"[{start:,} chars …] " if start else ""
        after = len(line) - start - width
        return f"{before}{visible(line[start : start + width])}{f' [… {after:,} chars]' if after else ''}"

    def _oversized(self, head: bytes, tail: bytes) -> bool:
        path, number = _PATH.match(head), _LINE_NUMBER.search(tail)
        name = os.fsdecode(_raw(json.loads(path[1]))) if path else ""
        if not path or not self._wanted(name):
            return True
        name = self._shown(name)
        where = f"{name}:{int(number[1])}:" if number and self._has_numbers else f"{name}:"
        is_more = self.page.add(f"{where}[matches in a very long line; Read it in parts with column]")
        self.origins += [Origin(self._raw_name)] * (len(self.page.records) - len(self.origins))
        return is_more


def _raw(value: dict[str, str]) -> bytes:
    """Decode ripgrep's texts: UTF-8 as it is, other bytes as base64."""
    return value["text"].encode() if "text" in value else base64.b64decode(value["bytes"])


def _decoded(raw: bytes) -> tuple[str, str]:
    """Decode a line as UTF-8, else as Latin-1, and return which."""
    try:
        return raw.decode(), "utf-8"
    except UnicodeDecodeError:
        return raw.decode("latin-1"), "latin-1"
