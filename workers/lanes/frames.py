"""How the engine and its children speak over their private socket: length-prefixed JSON objects."""

import asyncio
import json
import struct
from typing import Any

HEADER = struct.Struct("!I")


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Read one object, or None when the other side is gone."""
    try:
        (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        frame: dict[str, Any] = json.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return frame


def write_frame(writer: asyncio.StreamWriter, frame: dict[str, Any]) -> None:
    """Queue one object for sending."""
    body = json.dumps(frame).encode()
    writer.write(HEADER.pack(len(body)) + body)
