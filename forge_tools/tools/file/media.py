"""Images and PDF files as Read shows them; they are decoded by a process of its own, so that none of it happens here."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from forge_tools.artifacts.media import HEAD_BYTES, media_type
from forge_tools.artifacts.reader import MOST_SHOWN
from forge_tools.errors import InvalidCallError, SandboxError
from forge_tools.records import Image, ToolResult
from forge_tools.records.content import human
from forge_tools.sandbox.paths.confinement import OPEN_FOLDER, Handle
from forge_tools.sandbox.processes.commands import Completed, run

SIDE = 1568
"""Pixels of the longer side that are shown; models are given no more of an image by their providers."""

PAGES = 20
IMAGE_PAGES = 5
SECONDS = 30.0

PDF = "application/pdf"
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_DECODER = Path(__file__).with_name("decoder.py")
_RANGE = re.compile(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6}))?\s*")
_MOST_OUTPUT = 64 << 20


def decodable(handle: Handle) -> str | None:
    """The media type of a file, where Read can show what is in it."""
    kind = media_type(os.pread(handle.fd, HEAD_BYTES, 0))
    return kind if kind in _IMAGES or kind == PDF else None


async def shown(
    handle: Handle, kind: str, *, pages: str | None, as_images: bool, most_chars: int, seconds: float
) -> ToolResult:
    """Show a file of that media type.

    Raises:
        InvalidCallError: `pages` are no pages of it.
        SandboxError: it cannot be decoded, or this host lacks what it takes.
    """
    if kind in _IMAGES:
        return await _image(handle, kind, seconds)
    if as_images:
        first, last = _range(pages, IMAGE_PAGES)
        facts, data = await _decoded(handle, "pages", seconds, first=first, last=last)
        starts = [sum(facts["sizes"][:number]) for number in range(len(facts["sizes"]))]
        images = [
            Image(data[start : start + size], f"page-{first + number}.png")
            for number, (start, size) in enumerate(zip(starts, facts["sizes"], strict=True))
        ]
        return ToolResult.ok([_note(handle, facts, first, as_images=True), *images], **_facts(handle, kind, facts))
    first, last = _range(pages, PAGES)
    facts, data = await _decoded(handle, "text", seconds, first=first, last=last, most_chars=max(1, most_chars - 200))
    said = f"{data.decode()}\n\n{_note(handle, facts, first)}"
    return ToolResult.ok(said, **_facts(handle, kind, facts))


async def _image(handle: Handle, kind: str, seconds: float) -> ToolResult:
    facts, data = await _decoded(handle, "image", seconds, side=SIDE, most_bytes=MOST_SHOWN)
    size = handle.stat.st_size
    said = f"{handle.name}: {kind}, {facts['width']:,} x {facts['height']:,} pixels, {human(size)}"
    if facts["frames"] > 1:
        said += f", {facts['frames']:,} frames, of which the first is decoded"
    name = handle.name.rpartition("/")[2]
    if "shown" in facts:
        width, height = facts["shown"]
        return ToolResult.ok(
            [f"{said}; shown at {width:,} x {height:,}", Image(data, name)], **_facts(handle, kind, facts)
        )
    whole = os.pread(handle.fd, size, 0)
    return ToolResult.ok([said, Image(whole, name)], **_facts(handle, kind, facts))


def _note(handle: Handle, facts: dict[str, Any], first: int, *, as_images: bool = False) -> str:
    last, total = facts["last"], facts["pages"]
    if first > total:
        raise InvalidCallError(f"page {first:,} is past the end of {handle.name}, which has {total:,} pages")
    more = f"; continue with pages={last + 1}-{min(total, last + 1 + last - first)}" if last < total else ""
    return f"[pages {first:,}-{last:,} of {total:,}{more}]"


def _facts(handle: Handle, kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    told = {name: facts[name] for name in ("width", "height", "pages") if name in facts}
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


async def _decoded(handle: Handle, what: str, seconds: float, **told: Any) -> tuple[dict[str, Any], bytes]:
    """Have it decoded; what its process writes is no more trusted than the file."""
    output, folder = bytearray(), os.open("/", OPEN_FOLDER)

    def take(chunk: bytes) -> bool:
        output.extend(chunk)
        return len(output) <= _MOST_OUTPUT

    try:
        done = await run(
            [sys.executable, "-I", str(_DECODER), what, json.dumps(told)],
            folder=folder,
            environment={},
            timeout=min(SECONDS, seconds),
            stdin=handle.fd,
            stdout=take,
            stderr=lambda _: True,
        )
    finally:
        os.close(folder)
    line, _, data = bytes(output).partition(b"\n")
    try:
        facts: dict[str, Any] = json.loads(line)
    except ValueError:
        facts = {"error": _ending(done, seconds)}
    if "missing" in facts:
        needed = (
            f"{handle.name} cannot be shown: this worker lacks {facts['missing']}. pip install 'forge-tools[media]'"
        )
        raise SandboxError(needed, "BINARY_FILE")
    if "error" in facts:
        raise SandboxError(f"{handle.name} cannot be shown: {facts['error']}", "UNDECODABLE")
    return facts, data


def _ending(done: Completed, seconds: float) -> str:
    if done.timed_out:
        return f"decoding it took longer than {min(SECONDS, seconds):.0f}s"
    if done.stopped:
        return f"decoded it has more than {human(_MOST_OUTPUT)}"
    return f"its decoder ended with {f'signal {done.signal}' if done.signal else f'code {done.exit_code}'}"
