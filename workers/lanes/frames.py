"""The frames between an engine and its children, each child over a socket pair that only the two hold."""

import asyncio
import json
import logging
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from forge_tools.model.execution import ExecutionStatus
from forge_tools.model.scope import Stream
from forge_tools.sandbox.paths.confinement import Descriptor
from forge_tools.tool.failures import MOST_BYTES as MOST_OF_DIAGNOSIS

HEADER = struct.Struct("!II")
"""The length of a frame's JSON, and of the bytes that follow it: the data in an answer about artifacts."""

CHUNK = 1 << 18
MOST_UNREAD = 64 << 20
"""Bytes that may wait for a child to read them, before another frame: it has 32 answers of a MiB under way at most."""

MOST_FILES = 32
"""Files that a child may send ahead of the requests that they belong to."""

MOST_BYTES = 1 << 30
"""The most bytes of one frame that an engine sends: no row comes near it."""

Frame = dict[str, Any]

logger = logging.getLogger(__name__)


def most_from_child(max_output_bytes: int) -> int:
    """Return the most bytes of one frame for such results: three JSON texts, each escaped once more, and an error."""
    return 8 * max_output_bytes + (1 << 23)


def _json(text: str, *, is_object: bool = False) -> str:
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if is_object and type(value) is not dict:
        raise ValueError("not an object")
    return text


ExecutionId = Annotated[str, Field(max_length=64)]
Attempt = Annotated[int, Field(ge=0, lt=1 << 31)]
Number = Annotated[int, Field(ge=0, le=1 << 53)]
JsonText = Annotated[str, AfterValidator(_json)]
JsonObject = Annotated[str, AfterValidator(partial(_json, is_object=True))]
Report = tuple[Number, float | None, float | None, str | None, Number, Stream, Attempt | None]


class FromChild(BaseModel):
    """What a child may send: only the fields of one of these. Untrusted code may have written it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Answering(FromChild):
    """It can take a call: sent first after its start, and then whenever the engine asks."""

    kind: Literal["answering"]


class OfBody(FromChild):
    """About the body that runs in it, or that the child takes for it."""

    id: ExecutionId
    attempt: Attempt


class Started(OfBody):
    kind: Literal["started"]


class Asked(OfBody):
    """A request of the body, under a number that its answer repeats. It may come with an open file."""

    kind: Literal["asked"]
    number: Number
    artifact: dict[str, Any]
    has_file: bool = False


class Reported(OfBody):
    """What the body has reported since the last frame."""

    kind: Literal["reported"]
    told: list[Report]


class Ended(OfBody):
    """How the body ended. The engine decides whether there is another attempt; a child cannot ask for one."""

    kind: Literal["ended"]
    status: Literal[
        ExecutionStatus.SUCCEEDED, ExecutionStatus.FAILED, ExecutionStatus.TIMED_OUT, ExecutionStatus.CANCELLED
    ]
    duration_ms: float | None = None
    output: JsonText | None = None
    error: str | None = None
    error_code: str | None = None
    error_details: JsonText | None = None
    metadata: JsonObject = "{}"
    diagnosis: Annotated[JsonObject, Field(max_length=MOST_OF_DIAGNOSIS)] | None = None
    is_tainted: bool = False
    unfit: str | None = None


_SAYABLE: TypeAdapter[FromChild] = TypeAdapter(
    Annotated[Answering | Started | Asked | Reported | Ended, Field(discriminator="kind")]
)


class FrameError(ValueError):
    """The bytes are not a frame: the start of the next one is unknown, or the sender is not what it should be."""


class Frames:
    """Assembles frames from bytes that arrive in any pieces."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._received = bytearray()

    def add(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Add received bytes, and yield the JSON and the data of each frame that is complete.

        Raises:
            FrameError: it is not a frame, or too large. Nobody waits for the rest, perhaps gigabytes, of what is none.
        """
        received = self._received
        received += data
        while len(received) >= HEADER.size:
            length, more = HEADER.unpack_from(received)
            middle, end = HEADER.size + length, HEADER.size + length + more
            if length + more > self._most or bytes(received[HEADER.size : HEADER.size + 1]) not in (b"", b"{"):
                raise FrameError(f"a frame of {length + more:,} bytes was announced; the limit is {self._most:,}")
            if len(received) < end:
                return
            with memoryview(received) as view:  # copied once
                frame = bytes(view[HEADER.size : middle]), bytes(view[middle:end])
            del received[:end]
            yield frame


def framed(frame: Frame) -> bytes:
    """Encode a frame."""
    message, data = frame.get("artifact", {}), b""
    if isinstance(message.get("data"), bytes):
        data = message["data"]
        frame = frame | {"artifact": message | {"data": None}}
    body = json.dumps(frame, ensure_ascii=False).encode(errors="replace")
    return b"".join((HEADER.pack(len(body), len(data)), body, data))


class Received(Descriptor):
    """A file that a child has opened."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # noqa: FBT003  its only name is its place
        self.fd = fd


class EngineEnd(asyncio.Protocol):
    """The engine's end: `hear` receives what the child sends, and `ended` is called once no more will come.

    A child that breaks the protocol is ignored from then on, as if it were gone; `fault` then says why. Frames are read
    where they arrive, without a task in between: that would be a good part of the cost of a short call.
    """

    def __init__(self, hear: Callable[[FromChild], None], ended: Callable[[], None], most_bytes: int) -> None:
        self._hear = hear
        self._ended = ended
        self._frames = Frames(most_bytes)
        self._transport: asyncio.Transport | None = None
        self._end: socket.socket | None = None
        self.files = deque[Received]()
        """Sent by the child, and of no request yet."""
        self.fault: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._end = end = transport.get_extra_info("socket").dup()
        loop = asyncio.get_running_loop()
        loop.add_reader(end, self._receive, end, self._transport)
        loop.call_soon(self._transport.pause_reading)  # it would lose the files that come along, and begins after this

    def connection_lost(self, _: Exception | None) -> None:
        if self._end is not None:
            asyncio.get_running_loop().remove_reader(self._end)
            self._end.close()
        self.files.clear()
        self._ended()

    def _receive(self, end: socket.socket, transport: asyncio.Transport) -> None:
        try:
            data, files, _, _ = socket.recv_fds(end, CHUNK, 1)
        except BlockingIOError:
            return
        except OSError:
            data, files = b"", []
        self.files.extend(map(Received, files))
        if not data:
            asyncio.get_running_loop().remove_reader(end)
            transport.abort()
        elif len(self.files) > MOST_FILES:
            self._break(f"more than {MOST_FILES} files without a request")
        else:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self.fault is not None:
            return
        try:
            for text, _ in self._frames.add(data):
                frame = _SAYABLE.validate_json(text)
                if isinstance(frame, Asked) and frame.has_file and self.files:
                    frame.artifact["file"] = self.files.popleft()
                self._hear(frame)
        except FrameError as error:
            self._break(str(error))
        except ValidationError as error:
            self._break(f"a child may not send it: {_places(error)}")

    def send(self, frame: Frame) -> None:
        """Queue one object for sending; if the other side is gone, it is lost."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MOST_UNREAD:
            self._break("more requests than it reads answers to")
        else:
            self._transport.write(framed(frame))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _break(self, why: str) -> None:
        self.fault = why
        logger.error("The connection between an engine and its child is broken: %s", why)
        if self._transport is not None:
            self._transport.abort()


class ChildEnd:
    """The child's end: any thread sends, and waits until the engine has room; one loop receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._frames = Frames()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, frame: Frame, file: Descriptor | None = None) -> None:
        """Send a whole frame, perhaps with a file; if the engine is gone, the receiving loop notices."""
        data = framed(frame)
        with self._sending, suppress(OSError):
            sent = 0 if file is None else socket.send_fds(self._end, [data], [file.fd])
            self._end.sendall(data[sent:])

    def hear_on(self, loop: asyncio.AbstractEventLoop, hear: Callable[[Frame], None], ended: asyncio.Event) -> None:
        """Pass on received frames, on that loop, and set `ended` when nothing more will come."""

        def receive() -> None:
            try:
                data = self._end.recv(CHUNK, socket.MSG_DONTWAIT)
                for text, more in self._frames.add(data):
                    frame = json.loads(text)
                    if "data" in frame.get("artifact", {}):
                        frame["artifact"]["data"] = more
                    hear(frame)
            except BlockingIOError:
                return
            except (OSError, FrameError):
                data = b""
            if not data:
                loop.remove_reader(self._end)
                ended.set()

        loop.add_reader(self._end, receive)

    def forget_sender(self) -> None:
        """In a copy of this process that a tool forked: the holder of the lock does not exist there."""
        self._sending = threading.Lock()


def fields_of(record: Any, *but: str) -> Frame:
    """Return the fields of a flat record with slots, by name."""
    return {name: getattr(record, name) for name in record.__slots__ if name not in but}


def _places(error: ValidationError) -> str:
    """Say what is wrong and where, without the values: those may be secret."""
    wrong = [f"{'.'.join(map(str, one['loc'])) or 'frame'}: {one['type']}" for one in error.errors()]
    return ", ".join(wrong[:3])[:200]
