"""Functions that return images, files and bytes, for tests that call them in process and on workers alike."""

import io
import json
import struct
import zlib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from PIL import Image as Pillow

from forge_tools import BaseTool, ExecutionContext, File, Image, ToolCategory, ToolParameter, ToolResult
from forge_tools.sandbox.artifacts import open_artifact
from forge_tools.tool import tool


def png(size: int = 10) -> bytes:
    """A red square."""
    buffer = io.BytesIO()
    Pillow.new("RGB", (size, size), "red").save(buffer, "PNG")
    return buffer.getvalue()


def bomb(side: int = 30_000) -> bytes:
    """A PNG of a few bytes that says to be so many pixels wide and high."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    packed = zlib.compress(b"\0" * 100_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@dataclass
class Figures:
    """What `counted` returns."""

    count: int
    names: list[str]


@tool
def picture() -> bytes:
    """Return the bytes of a PNG."""
    return png()


@tool
def plain_bytes() -> bytes:
    """Return bytes that are text."""
    return b"only text"


@tool
def drawn() -> Pillow.Image:
    """Return an image of Pillow."""
    return Pillow.new("RGB", (10, 20), "red")


@tool
async def mixed() -> list[object]:
    """Return text, an image, data and files."""
    return [
        "Here it is",
        Image(png(), name="chart.png"),
        {"n": 1},
        "and",
        Path("notes.txt"),
        File(b"\0\1", name="x.bin"),
    ]


@tool
def attaching(context: ExecutionContext, outside: bool = False) -> dict[str, int]:
    """Attach what is found on the way."""
    context.attach(png(), name="shot.png")
    context.attach("/etc/passwd" if outside else "notes.txt")
    return {"seen": 2}


@tool
def lying() -> list[object]:
    """Return what is not what it says."""
    return [
        Image(png(), name="a.jpg", mime_type="image/jpeg"),
        Image(b"<html>", name="b.png", mime_type="image/png"),
        Image(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", name="c.svg"),
        Image(png()[:-20], name="d.png"),
        Image(bomb(), name="e.png"),
    ]


@tool
def misnamed() -> list[object]:
    """Return files whose names and types no folder and no line of text takes."""
    return [
        File(b"\0", name="é" * 300 + ".bin"),
        File(b"\0", name="../../up\n.bin"),
        File(b"a,b", name="c", mime_type="text/csv\n[image"),
    ]


@tool
def mistyped() -> File:
    """Say what is no text about bytes."""
    return File(b"\0", mime_type=5)


@tool
def leading(to: str) -> list[object]:
    """Return text, the file at a path, and a picture."""
    return ["before", Path(to), png()]


@tool(sensitive=["password"])
def quoting(password: str, context: ExecutionContext) -> list[object]:
    """Return a password in texts, in a name, and in bytes that are no text."""
    context.attach(json.dumps({"seen": password}).encode(), name="seen.json")
    return [File(f"ada:{password}\n".encode(), name=f"{password}.txt"), File(b"\0" + password.encode(), name="x.bin")]


@tool
def many(count: int) -> list[object]:
    """Return so many files."""
    return [File(str(number).encode() + b"\0", name=f"{number}.bin") for number in range(count)]


@tool
def large(size: int) -> list[object]:
    """Return text and a file of so many bytes."""
    return ["small", File(b"\0" * size, name="large.bin")]


@tool
def counted(count: int = 2) -> Figures:
    """Return what its annotation describes."""
    return Figures(count, ["a"] * count)


class Measure(BaseTool):
    """Say how many bytes a kept file has, and their digest."""

    name = "measure"
    category = ToolCategory.FILE
    parameters = (ToolParameter(name="file", type="file", description="Which."),)

    async def _execute(self, context: ExecutionContext, file: str) -> ToolResult:
        with await open_artifact(file, context, self.workspace(context)) as opened, open(opened.link, "rb") as data:
            return ToolResult.ok({"bytes": opened.stat.st_size, "sha256": sha256(data.read()).hexdigest()})


def make() -> list[BaseTool]:
    """All of them."""
    return [
        picture,
        plain_bytes,
        drawn,
        mixed,
        attaching,
        lying,
        misnamed,
        mistyped,
        leading,
        quoting,
        many,
        large,
        counted,
        Measure(),
    ]
