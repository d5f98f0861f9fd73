"""Images of results on terminals that support them, by kitty's protocol or iTerm's; elsewhere their lines must do."""

import base64
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from forge_tools.artifacts.media import IMAGES
from forge_tools.artifacts.reader import MOST_SHOWN
from forge_tools.cli.face import Face
from forge_tools.errors import ForgeError
from forge_tools.model import Image, ToolResult

_PIECE = 4096
"""The most characters that kitty accepts at once."""


async def pictures_of(face: Face, result: ToolResult) -> str:
    """Return the terminal sequence for the images of a result, if the output goes to a terminal that supports them."""
    protocol = _protocol() if face.out.is_terminal and not face.is_json else None
    if protocol is None:
        return ""
    drawn = list[str]()
    for image in result.images:
        takes = image.mime_type in IMAGES if protocol == "iterm" else image.mime_type == "image/png"
        if takes and (image.size or 0) <= MOST_SHOWN:
            with suppress(ForgeError):  # it has expired: its line stays
                drawn.append(await _drawn(image, protocol))
    return "".join(drawn)


def _protocol() -> Literal["kitty", "iterm"] | None:
    """Return the protocol that the terminal announces; a terminal running inside it announces its own."""
    terminal, program = os.environ.get("TERM", ""), os.environ.get("TERM_PROGRAM", "")
    if terminal.startswith(("screen", "tmux", "dumb")):
        return None
    if terminal in {"xterm-kitty", "xterm-ghostty"} or "KITTY_WINDOW_ID" in os.environ:
        return "kitty"
    return "iterm" if program in {"iTerm.app", "WezTerm"} else None


async def _drawn(image: Image, protocol: str) -> str:
    data = base64.b64encode(await image.bytes()).decode()
    if protocol == "iterm":
        return f"\x1b]1337;File=inline=1;size={image.size}:{data}\x07\n"
    return "".join(_pieces(data)) + "\n"


def _pieces(data: str) -> Iterator[str]:
    for start in range(0, len(data), _PIECE):
        has_more = int(start + _PIECE < len(data))
        keys = f"a=T,f=100,m={has_more}" if not start else f"m={has_more}"
        yield f"\x1b_G{keys};{data[start : start + _PIECE]}\x1b\\"
