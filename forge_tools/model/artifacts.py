"""Artifacts: outputs too long for their result, stored whole under the digest of their bytes."""

import re
from dataclasses import dataclass
from datetime import datetime

SCHEME = "artifact://"
TEXT = "text/plain; charset=utf-8"
TEXTS = ("text/", "application/json", "application/xml")
"""The beginnings of the media types that are text."""

PAGE_LINES = 2000
PAGE_BYTES = 1 << 20
_ID = re.compile("([0-9a-f]{32}){1,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One artifact; `size` counts its bytes.

    `id` is the 128-bit BLAKE2b of the bytes, in hex. Before it, uploads of clients with a restricted role have as many
    random digits, since nobody has proven that the bytes are those of the digest.
    """

    id: str
    size: int
    media_type: str = TEXT
    execution_id: str | None = None
    session_id: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None

    @property
    def digest(self) -> str:
        """The digest that its bytes must have."""
        return self.id[-32:]

    @property
    def handle(self) -> str:
        """The handle that Read and Grep accept in place of a path."""
        return f"{SCHEME}{self.id}"


def artifact_id(handle: str) -> str | None:
    """The id in a handle such as `artifact://6b1f...`; None for anything else."""
    if not handle.startswith(SCHEME):
        return None
    found = handle.removeprefix(SCHEME)
    return found if _ID.fullmatch(found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWish:
    """Which page to read: from line `offset` (counted from 1) or from `byte` (counted from 0).

    It holds at most `max_bytes` bytes and `limit` lines. `limit` defaults to 2,000, or to no limit with `byte`.
    """

    offset: int | None = None
    byte: int | None = None
    limit: int | None = None
    max_bytes: int | None = None

    @property
    def most_lines(self) -> int | None:
        return PAGE_LINES if self.limit is None and self.byte is None else self.limit

    @property
    def most_bytes(self) -> int:
        return PAGE_BYTES if self.max_bytes is None else self.max_bytes

    @property
    def problem(self) -> str | None:
        """What is wrong with the request, as a sentence; None if nothing is."""
        for name, value, least in (
            ("offset", self.offset, 1),
            ("byte", self.byte, 0),
            ("limit", self.limit, 1),
            ("max_bytes", self.max_bytes, 1),
        ):
            if value is not None and value < least:
                return f"{name} {value} must be at least {least}"
        if self.byte is not None and self.offset is not None:
            return "Pass offset or byte, not both"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactPage:
    """Bytes `start` to `end` of an artifact. `first_line` is None if the lines before it were not counted.

    `next` is the `offset` or `byte` of the next page, as `PageWish` takes it; None at the end.
    """

    handle: str
    size: int
    data: bytes
    start: int
    first_line: int | None
    next: dict[str, int] | None

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    @property
    def text(self) -> str:
        """The page as text; bytes that are not UTF-8 become U+FFFD."""
        return self.data.decode("utf-8", "replace")

    @property
    def lines(self) -> int:
        """The number of lines on the page; a partial line counts."""
        return self.data.count(b"\n") + (not self.data.endswith(b"\n") and bool(self.data))
