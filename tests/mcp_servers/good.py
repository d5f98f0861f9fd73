"""A well-behaved server, instrumented for tests: how often a tool ran, and whether it was asked to stop."""

import asyncio
import gc
import os
import sys
from pathlib import Path
from typing import Any

gc.disable()  # what is imported stays: looks for garbage take as long as the imports

from mcp.server.mcpserver import Context, Image, MCPServer  # noqa: E402  as above
from mcp.types import ToolAnnotations  # noqa: E402  as above
from pydantic import BaseModel  # noqa: E402  as above

server = MCPServer("good")
READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)


class Place(BaseModel):
    city: str
    zip: str = ""


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


DRAWN = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c494441"
    "54789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
"""A PNG of one red pixel."""


@server.tool()
def visit(place: Place, others: list[Place] | None = None) -> str:
    """Go to a place."""
    return ", ".join(p.city for p in [place, *(others or [])])


@server.tool()
def environment() -> dict[str, str]:
    """Say what it was started with."""
    return dict(os.environ)


@server.tool()
def identity() -> int:
    """Say which process it is."""
    return os.getpid()


@server.tool()
def picture() -> Image:
    """Draw."""
    return Image(data=DRAWN, format="png")


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("out of paper")


@server.tool()
def large(size: int) -> str:
    """Say much."""
    return "x" * size


@server.tool()
def complain(lines: int) -> str:
    """Write to the error stream."""
    for number in range(lines):
        print(f"complaint {number}", file=sys.stderr)
    return "done"


@server.tool()
async def wait(mark: str) -> str:
    """Wait for ever, and note beginning and end in a file."""
    path = Path(mark)
    path.write_text(f"began {os.getpid()}")
    try:
        await asyncio.sleep(600)
    finally:
        path.write_text("stopped")
    return "unreachable"


@server.tool()
async def count(steps: int, context: Context) -> int:
    """Count, and say how far."""
    for step in range(1, steps + 1):
        await context.report_progress(step, steps, f"step {step}")
        await asyncio.sleep(0.4)
    return steps


@server.tool()
def crash() -> str:
    """End the process in the middle of the call."""
    os._exit(7)


@server.tool()
async def grow(context: Context) -> str:
    """Get one more tool, lose another, and say so."""

    def novelty() -> str:
        """Be new."""
        return "new"

    server.add_tool(novelty)
    server.remove_tool("visit")
    await context.notify_tools_changed()
    return "grown"


def main(arguments: list[str]) -> Any:
    if arguments[:1] == ["--http"]:
        return server.run("streamable-http", host="127.0.0.1", port=int(arguments[1]))
    return server.run("stdio")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    finally:
        gc.freeze()
