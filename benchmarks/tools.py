"""The tools that are measured: they do nothing, wait, or carry something.

The same file is measured with `forge_tools` of older commits: it needs no more than names that every commit has, until
a tool that needs more is called.
"""

import asyncio
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import forge_tools
from forge_tools.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult

if TYPE_CHECKING:
    from forge_tools.model import Lane


class NoOp(BaseTool):
    """Do nothing, in the async lane."""

    name = "NoOp"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane: "Lane" = "async"
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        return ToolResult.ok("done")


class NoOpProcess(NoOp):
    """Do nothing, in the process lane."""

    name = "NoOpProcess"
    lane: "Lane" = "process"


class Files(BaseTool):
    """Write, read and remove small files in the workspace, in the process lane."""

    name = "Files"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane: "Lane" = "process"
    parameters = (ToolParameter(name="count", type="integer", description="How many.", minimum=0),)

    async def _execute(self, context: ExecutionContext, count: int) -> ToolResult:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(count):
                path = Path(folder, str(number))
                path.write_bytes(b"x" * 1_000)
                path.read_bytes()
                path.unlink()
        return ToolResult.ok("done")


class Sleep(BaseTool):
    """Await some seconds, in the async lane."""

    name = "Sleep"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (ToolParameter(name="seconds", type="number", description="How long.", minimum=0),)

    async def _execute(self, context: ExecutionContext, seconds: float) -> ToolResult:
        await asyncio.sleep(seconds)
        return ToolResult.ok("slept")


class Swallow(BaseTool):
    """Take a text and answer with its length, in the async lane."""

    name = "Swallow"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (ToolParameter(name="text", type="string", description="Any text."),)

    async def _execute(self, context: ExecutionContext, text: str) -> ToolResult:
        return ToolResult.ok(str(len(text)))


class Produce(BaseTool):
    """Answer with a text of some length, in the async lane."""

    name = "Produce"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (ToolParameter(name="size", type="integer", description="How many characters.", minimum=0),)

    async def _execute(self, context: ExecutionContext, size: int) -> ToolResult:
        return ToolResult.ok("x" * size)


class Picture(BaseTool):
    """Answer with an image, in the async lane; each `number` gives another one."""

    name = "Picture"
    category = ToolCategory.OTHER
    lane: "Lane" = "async"
    parameters = (
        ToolParameter(name="size", type="integer", description="How many bytes.", minimum=100),
        ToolParameter(name="number", type="integer", description="Which.", minimum=0),
    )

    async def _execute(self, context: ExecutionContext, size: int, number: int) -> ToolResult:
        return ToolResult.ok(forge_tools.Image(picture(size, number)))


class PictureProcess(Picture):
    """Do so in the process lane."""

    name = "PictureProcess"
    lane: "Lane" = "process"


class Deliver(BaseTool):
    """Answer with a file of the workspace, in the async lane."""

    name = "Deliver"
    category = ToolCategory.OTHER
    lane: "Lane" = "async"
    parameters = (ToolParameter(name="path", type="string", description="Which."),)

    async def _execute(self, context: ExecutionContext, path: str) -> ToolResult:
        return ToolResult.ok(forge_tools.File(Path(path)))


class DeliverProcess(Deliver):
    """Do so in the process lane."""

    name = "DeliverProcess"
    lane: "Lane" = "process"


def picture(size: int, number: int) -> bytes:
    """Bytes that no program decodes, but all take for a PNG of a million pixels."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR" + (1_000).to_bytes(4) * 2 + number.to_bytes(16)
    tail = b"IEND\xaeB`\x82"
    room = size - len(head) - len(tail)
    return b"".join((head, noise() * (room // len(noise())), noise()[: room % len(noise())], tail))


@cache
def noise() -> bytes:
    """A million bytes that cannot be compressed, the same ones in every process."""
    return random.Random(1).randbytes(1_000_000)


TOOLS = (NoOp, NoOpProcess, Files, Sleep, Swallow, Produce, Picture, PictureProcess, Deliver, DeliverProcess)
