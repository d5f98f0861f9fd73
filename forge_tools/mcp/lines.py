"""JSON-RPC as lines: splits a byte stream into lines of bounded length, and finds the id even in a longer one."""

import json
import re
from typing import Any, NamedTuple

from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, ErrorData, JSONRPCError

_HEAD_BYTES = 1000
_OUTLINE_BYTES = 10_000
_MARKS = re.compile(rb'["{}\[\]]|\\.', re.DOTALL)


class LongLine(NamedTuple):
    """The remains of a line beyond the limit: its beginning, its id if it is a message, and its length."""

    head: bytes
    id: str | int | None
    size: int


class Lines:
    """Splits chunks into lines without their ends; `limit` is in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._size = 0
        self._outline: _Outline | None = None

    def feed(self, chunk: bytes) -> list[bytes | LongLine]:
        """Add a chunk and return the lines that it completes."""
        *ended, rest = chunk.split(b"\n")
        lines: list[bytes | LongLine] = []
        for part in ended:
            self._keep(part)
            lines.append(self.rest())
        self._keep(rest)
        return lines

    def rest(self) -> bytes | LongLine:
        """Return the bytes after the last line."""
        kept = bytes(self._kept)
        line = kept if self._outline is None else LongLine(kept, self._outline.id(), self._size)
        self._kept.clear()
        self._size, self._outline = 0, None
        return line

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._outline is not None:
            self._outline.feed(part)
            return
        self._kept += part
        if self._size > self._limit:
            self._outline = _Outline()
            self._outline.feed(self._kept)
            del self._kept[_HEAD_BYTES:]


class _Outline:
    """The outermost level of a JSON object that arrives in pieces, with `0` in place of nested values."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._depth = 0
        self._is_in_string = False
        self._unread = b""

    def feed(self, part: bytes | bytearray) -> None:
        part = self._unread + part
        end = len(part) - (len(part) - len(part.rstrip(b"\\"))) % 2  # an escape may be split
        part, self._unread = part[:end], part[end:]
        start = 0
        for found in _MARKS.finditer(part):
            mark = found[0]
            if mark == b'"':
                self._is_in_string = not self._is_in_string
            elif self._is_in_string:
                continue
            elif mark in b"{[":
                self._depth += 1
                if self._depth == 2:
                    self._keep(part[start : found.start()] + b"0")
            elif mark in b"]}":
                self._depth -= 1
                start = found.end() if self._depth == 1 else start
        if self._depth <= 1:
            self._keep(part[start:])

    def id(self) -> str | int | None:
        """Return the id of the message; None if none can be read."""
        try:
            return id_of(json.loads(bytes(self._text)))
        except ValueError:
            return None

    def _keep(self, text: bytes | bytearray) -> None:
        self._text += text[: _OUTLINE_BYTES - len(self._text)]


def id_of(message: Any) -> str | int | None:
    """Return the id of a JSON-RPC message; None if it is not a message, or has no valid id."""
    id_ = message.get("id") if isinstance(message, dict) else None
    return id_ if isinstance(id_, str | int) and not isinstance(id_, bool) else None


def misnumbered(data: bytes | bytearray) -> JSONRPCError | None:
    """Refuse a request whose id is neither a string nor an integer: the SDK takes it for a notification."""
    try:
        message = json.loads(data) if b'"id"' in data else None
    except (ValueError, RecursionError):
        return None
    if isinstance(message, dict) and message.keys() >= {"id", "method"} and id_of(message) is None:
        return refusal(INVALID_REQUEST, "The id of a request is a string or an integer")
    return None


def refusal(code: int, message: str, id: str | int | None = None) -> JSONRPCError:
    """Return an error of the protocol, without an id if none could be read."""
    return JSONRPCError(jsonrpc="2.0", id=id, error=ErrorData(code=code, message=message))


def encoded(item: SessionMessage) -> bytes:
    """Return a message as a line."""
    return item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
