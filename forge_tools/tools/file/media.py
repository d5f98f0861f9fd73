"""Images and PDF files as Read shows them; they are decoded by a process of its own, so that none of it happens here."""

import os
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from forge_tools.artifacts.media import IMAGES, media_type
from forge_tools.artifacts.reader import MOST_SHOWN
from forge_tools.errors import InvalidCallError
from forge_tools.model import Image, ToolResult
from forge_tools.model.content import human
from forge_tools.sandbox.decoding import decoded
from forge_tools.sandbox.paths.confinement import Handle

SIDE = 1568
"""Pixels of the longer side that are shown; models are given no more of an image by their providers."""

PAGES = 20
IMAGE_PAGES = 5

PDF = "application/pdf"
_RANGE = re.compile(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6}))?\s*")
_NOTE_ROOM = 200


SHOWN = IMAGES | {PDF}
"""What is more than text tools can read, and Read can show."""


@dataclass(frozen=True, slots=True)
class Showing:
    """How a file is shown: which pages, as text of so many characters or as images, in how many seconds."""

    pages: str | None
    as_images: bool
    most_chars: int
    seconds: float


async def shown(handle: Handle, kind: str, how: Showing) -> ToolResult:
    """Show a file of that media type.

    Raises:
        InvalidCallError: `pages` are no pages of it.
        SandboxError: it cannot be decoded, or this host lacks what it takes.
    """
    if kind != PDF:
        return await _image(handle, kind, how.seconds)
    first, last = _range(how.pages, IMAGE_PAGES if how.as_images else PAGES)
    if how.as_images:
        return await _page_images(handle, first, last, how.seconds)
    most = max(1, how.most_chars - _NOTE_ROOM)
    facts, data = await decoded(handle.name, handle.fd, "text", how.seconds, first=first, last=last, most_chars=most)
    note = _note(handle, facts, first, last)
    return ToolResult.ok(f"{data.decode()}\n\n{note}", **_facts(handle, PDF, facts))


async def _page_images(handle: Handle, first: int, last: int, seconds: float) -> ToolResult:
    facts, data = await decoded(handle.name, handle.fd, "pages", seconds, first=first, last=last)
    images, start = list[Image](), 0
    for number, size in enumerate(facts["sizes"], first):
        images.append(Image(data[start : start + size], f"page-{number}.png"))
        start += size
    return ToolResult.ok([_note(handle, facts, first, last), *images], **_facts(handle, PDF, facts))


async def _image(handle: Handle, kind: str, seconds: float) -> ToolResult:
    facts, data = await decoded(handle.name, handle.fd, "image", seconds, side=SIDE, most_bytes=MOST_SHOWN)
    size = handle.stat.st_size
    said = f"{handle.name}: {kind}, {facts['width']:,} x {facts['height']:,} pixels, {human(size)}"
    if facts["frames"] > 1:
        said += f", {facts['frames']:,} frames, of which the first is decoded"
    name = PurePath(handle.name)
    if "shown" in facts:
        width, height = facts["shown"]
        ending = ".jpg" if media_type(data) == "image/jpeg" else ".png"
        return ToolResult.ok(
            [f"{said}; shown at {width:,} x {height:,}", Image(data, name.with_suffix(ending).name)],
            **_facts(handle, kind, facts),
        )
    whole = os.pread(handle.fd, size, 0)
    return ToolResult.ok([said, Image(whole, name.name)], **_facts(handle, kind, facts))


def _note(handle: Handle, facts: dict[str, Any], first: int, asked: int) -> str:
    last, total = facts["last"], facts["pages"]
    if first > total:
        raise InvalidCallError(f"page {first:,} is past the end of {handle.name}, which has {total:,} pages")
    more = f"; continue with pages={last + 1}-{min(total, last + 1 + asked - first)}" if last < total else ""
    return f"[pages {first:,}-{last:,} of {total:,}{more}]"


def _facts(handle: Handle, kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {name: facts[name] for name in ("width", "height", "pages") if name in facts}
    return {"bytes": handle.stat.st_size, "media_type": kind, **told}


def _range(pages: str | None, most: int) -> tuple[int, int]:
    if pages is None:
        return 1, most
    found = _RANGE.fullmatch(pages)
    first = int(found[1]) if found else 0
    last = int(found[2] or first) if found else 0
    if not 1 <= first <= last:
        raise InvalidCallError(f"pages {pages!r} names no pages. Give one, such as 3, or some, such as 3-7")
    return first, min(last, first + most - 1)
