"""The parts of results as whoever has a result reads them: whole, into a folder, or those that fit into a message."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from inspect import isawaitable
from pathlib import Path, PurePath
from typing import Any

from forge_tools.errors import ForgeError
from forge_tools.model import Media, ToolResult
from forge_tools.model.content import CONTENT

MOST_SHOWN = 3_500_000
"""Bytes of a part that goes into a message to a model: encoded, providers take 5 MB."""

MOST_TOGETHER = 15_000_000
"""Bytes of all parts of one result that do."""


class PartReader:
    """Reads the bytes of parts by their handles, one piece in memory at a time."""

    def __init__(self, read: Callable[[str], AsyncIterator[bytes]]) -> None:
        self._read = read

    async def bytes(self, part: Media) -> bytes:
        """Return all bytes of a part."""
        return b"".join([chunk async for chunk in self._read(part.uri or "")])

    async def save(self, part: Media, folder: str | Path) -> Path:
        """Write a part into a folder under its name, or one like it where that is taken; returns the path."""
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
    """The bytes, by their handles, of those parts of a result that are wanted and fit; others are told of by their lines."""
    found, room = dict[str, bytes](), MOST_TOGETHER
    for part in result.content if CONTENT in result.metadata else ():
        if isinstance(part, Media) and part.source and part.uri and wanted(part) and 0 < (part.size or 0) <= MOST_SHOWN:
            room -= part.size or 0
            if room >= 0:
                try:
                    found[part.uri] = await _bytes(part)
                except ForgeError:  # it has expired, or the database is away: the line stays
                    continue
    return found


async def _bytes(part: Media) -> bytes:
    data: Any = await asyncio.to_thread(part.bytes)  # which blocks where there is nothing to await
    whole: bytes = await data if isawaitable(data) else data
    return whole


def _created(folder: Path, name: str) -> tuple[Path, int]:
    """Make a file that was not there."""
    folder.mkdir(parents=True, exist_ok=True)
    stem, suffix = PurePath(name).stem, PurePath(name).suffix
    for number in range(1, 10_000):
        path = folder / (name if number == 1 else f"{stem}-{number}{suffix}")
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
    raise FileExistsError(f"{folder} has {name} ten thousand times")
