"""How the engine and its children speak over their private socket: length-prefixed JSON objects."""

import asyncio
import json
import logging
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

HEADER = struct.Struct("!I")
CHUNK = 1 << 18

MOST_BYTES = 1 << 30
"""Of one frame. By default no result comes near it, however often it is escaped: a greater length is none."""

logger = logging.getLogger(__name__)

Hear = Callable[[dict[str, Any]], None]


class Line(asyncio.Protocol):
    """One end of a connection: `hear` is told each frame, and `ended` once that no more will come.

    Frames are read where they arrive, with no task in between: that is a good part of what a short call costs.
    """

    def __init__(self, hear: Hear, ended: Callable[[], None]) -> None:
        self.hear = hear
        self.ended = ended
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        self.ended()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (frame := self._next()) is not None:
            self.hear(frame)

    def send(self, frame: dict[str, Any]) -> None:
        """Queue one object for sending; once the other side is gone nobody hears it."""
        if self._transport is not None and not self._transport.is_closing():
            body = json.dumps(frame).encode()
            if len(body) > MOST_BYTES:
                self._break(f"a frame of {len(body):,} bytes was to be sent; the limit is {MOST_BYTES:,}")
            else:
                self._transport.write(HEADER.pack(len(body)) + body)

    def hear_now(self) -> None:
        """Hear what has arrived already, before the loop comes to it."""
        if self._transport is None or self._transport.is_closing():
            return
        with self._transport.get_extra_info("socket").dup() as arrived, suppress(BlockingIOError):
            while not self._transport.is_closing() and (data := arrived.recv(CHUNK)):
                self.data_received(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _next(self) -> dict[str, Any] | None:
        """Take one whole object from what was received, or nothing."""
        received = self._received
        if len(received) < HEADER.size:
            return None
        length = HEADER.unpack_from(received)[0]
        end = HEADER.size + length
        if len(received) < end:
            # Nobody waits for the rest, perhaps gigabytes, of what cannot be one.
            if length > MOST_BYTES or bytes(received[HEADER.size : HEADER.size + 1]) not in (b"", b"{"):
                self._break(f"{length:,} bytes were announced as a frame, which is an object of {MOST_BYTES:,} at most")
            return None
        try:
            frame: dict[str, Any] = json.loads(received[HEADER.size : end])
        except ValueError as error:
            self._break(f"{length:,} bytes that came as a frame are no JSON: {error}")
            return None
        del received[:end]
        return frame

    def _break(self, why: str) -> None:
        """Give the line up, as if the other side were gone: where the next frame would begin is not known."""
        logger.error("The line between an engine and its child is broken: %s", why)
        self._received.clear()
        if self._transport is not None:
            self._transport.abort()


def fields_of(record: Any, *but: str) -> dict[str, Any]:
    """What a flat record with slots holds, by name."""
    return {name: getattr(record, name) for name in record.__slots__ if name not in but}
