"""Reads artifacts and parts of results: whole, a page at a time, into a folder, or what fits into a message."""

import asyncio
import builtins
import io
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from hashlib import blake2b
from inspect import isawaitable
from pathlib import Path, PurePath
from typing import Any

from forge_tools.artifacts.parts import PART_BYTES, count_parts
from forge_tools.errors import ForgeError, InvalidCallError
from forge_tools.model.artifacts import Artifact, ArtifactPage, PageWish
from forge_tools.model.calls import ToolResult
from forge_tools.model.content import CONTENT, Media

Chunks = Callable[[int], Awaitable[bytes]]
"""Reads the content of a part."""

MOST_SHOWN = 3_500_000
"""The most bytes of a part sent to a model in a message: providers accept 5 MB once encoded."""

MOST_TOGETHER = 15_000_000
"""The most bytes of all such parts of one result together."""


async def whole(artifact: Artifact, chunk: Chunks) -> AsyncIterator[bytes]:
    """Yield all of an artifact, one part in memory at a time.

    Raises:
        ValueError: at the end, if the bytes do not match the handle.
    """
    digest = blake2b(digest_size=16)
    for number in range(count_parts(artifact.size)):
        digest.update(data := await chunk(number))
        yield data
    if digest.hexdigest() != artifact.digest:
        raise ValueError("its bytes do not match its handle")


class Pages:
    """One artifact, read in pages. `breaks` holds the number of line ends in each part, None if they were not counted."""

    def __init__(self, artifact: Artifact, breaks: list[int | None], chunk: Chunks) -> None:
        self._artifact = artifact
        self._breaks = breaks
        self._chunk = chunk

    async def read(self, wish: PageWish) -> ArtifactPage:
        """Return the requested page.

        Raises:
            InvalidCallError: there is no such page.
            StorageError: the artifact has gone in the meantime, or is damaged.
        """
        if wish.problem:
            raise InvalidCallError(wish.problem)
        start, line = await (self._at_line(wish.offset or 1) if wish.byte is None else self._at_byte(wish.byte))
        data = await self._gather(start, wish)
        data = _cut(data, wish, is_last=start + len(data) == self._artifact.size)
        handle, size = self._artifact.handle, self._artifact.size
        page = ArtifactPage(handle=handle, size=size, data=data, start=start, first_line=line, next=None)
        if page.end == size:
            return page
        if wish.byte is None and line is not None and data.endswith(b"\n"):
            return replace(page, next={"offset": line + page.lines})
        return replace(page, next={"byte": page.end})

    async def _at_line(self, line: int) -> tuple[int, int]:
        number, before = 0, 0
        while number < count_parts(self._artifact.size) and before + (ends := await self._count(number)) < line - 1:
            number, before = number + 1, before + ends
        start = number * PART_BYTES
        if start < self._artifact.size and line - 1 > before:
            start += _after_breaks(await self._chunk(number), line - 1 - before)
        if start >= self._artifact.size and line > 1:
            raise InvalidCallError(f"offset {line:,} is past the end of {self._artifact.handle}")
        return start, line

    async def _at_byte(self, byte: int) -> tuple[int, int | None]:
        if byte >= self._artifact.size and byte:
            of = f"{self._artifact.handle}, which has {self._artifact.size:,} bytes"
            raise InvalidCallError(f"byte {byte:,} is past the end of {of}")
        number = byte // PART_BYTES
        before = [ends for ends in self._breaks[:number] if ends is not None]
        if len(before) < number:
            return byte, None
        within = (await self._chunk(number))[: byte % PART_BYTES].count(b"\n") if byte % PART_BYTES else 0
        return byte, sum(before) + within + 1

    async def _count(self, number: int) -> int:
        ends = self._breaks[number] if number < len(self._breaks) else None
        return (await self._chunk(number)).count(b"\n") if ends is None else ends

    async def _gather(self, start: int, wish: PageWish) -> bytes:
        data, ends = bytearray(), 0
        lines = wish.most_lines
        while start < self._artifact.size and len(data) < wish.most_bytes and (lines is None or ends < lines):
            chunk = (await self._chunk(start // PART_BYTES))[start % PART_BYTES :]
            data += chunk
            start, ends = start + len(chunk), ends + chunk.count(b"\n")
        return bytes(data)


def _cut(data: bytes, wish: PageWish, *, is_last: bool) -> bytes:
    """End after the last requested line; if that is too long, after one that fits, or after a character."""
    end = len(data) if wish.most_lines is None else _after_breaks(data, wish.most_lines)
    if end <= wish.most_bytes and (is_last or end < len(data)):
        return data[:end]
    data = data[: wish.most_bytes]
    whole = after_last_line(data) if wish.byte is None else after_last_character(data)
    return data[: whole or len(data)]


def _after_breaks(data: bytes, count: int) -> int:
    """Return where the line begins that follows `count` line ends."""
    pieces = data.split(b"\n", min(count, len(data)))
    return len(data) - len(pieces[-1]) if len(pieces) > count else len(data)


def after_last_line(data: bytes) -> int:
    """Return where the last whole line ends, or the last whole character."""
    return data.rfind(b"\n") + 1 or after_last_character(data)


def after_last_character(data: bytes) -> int:
    """Return where the last whole character ends, if this is UTF-8."""
    for back in range(1, min(4, len(data)) + 1):
        if (first := data[-back]) & 0xC0 != 0x80:
            width = 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
            return len(data) - (back if width > back else 0)
    return len(data)


def next_line(data: bytes) -> int:
    """Return where the next line begins, or the next character."""
    if (start := data.find(b"\n") + 1) > 0:
        return start
    return next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


class PartReader:
    """Reads the bytes of parts by their handles, one piece in memory at a time."""

    def __init__(self, read: Callable[[str], AsyncIterator[builtins.bytes]]) -> None:
        self._read = read

    async def bytes(self, part: Media) -> builtins.bytes:
        data = io.BytesIO()  # not a list of chunks, which would be held beside what is joined from them
        async for chunk in self._read(part.uri or ""):
            data.write(chunk)
        return data.getvalue()

    async def save(self, part: Media, folder: str | Path) -> Path:
        """Write a part into a folder and return the path; a taken name is varied."""
        name = PurePath(part.name or "").name or f"{part.type}.bin"
        path, fd = await asyncio.to_thread(_created, Path(folder), name)
        try:
            with os.fdopen(fd, "wb") as file:
                async for chunk in self._read(part.uri or ""):
                    await asyncio.to_thread(file.write, chunk)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path


async def seen(result: ToolResult, wanted: Callable[[Media], bool]) -> dict[str, bytes]:
    """Return the bytes, by handle, of the wanted parts of a result that fit; the others appear only as lines."""
    found, room = dict[str, bytes](), MOST_TOGETHER
    for part in result.content if CONTENT in result.metadata else ():
        if isinstance(part, Media) and part.source and part.uri and wanted(part) and 0 < (part.size or 0) <= MOST_SHOWN:
            room -= part.size or 0
            if room >= 0:
                try:
                    found[part.uri] = await _bytes(part)
                except ForgeError:  # it has expired, or the database is unavailable: the line stays
                    continue
    return found


async def _bytes(part: Media) -> bytes:
    data: Any = await asyncio.to_thread(part.bytes)  # which blocks if there is nothing to await
    whole: bytes = await data if isawaitable(data) else data
    return whole


def _created(folder: Path, name: str) -> tuple[Path, int]:
    folder.mkdir(parents=True, exist_ok=True)
    stem, suffix = PurePath(name).stem, PurePath(name).suffix
    for number in range(1, 10_000):
        path = folder / (name if number == 1 else f"{stem}-{number}{suffix}")
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
    raise FileExistsError(f"{folder} already has ten thousand files named like {name}")
