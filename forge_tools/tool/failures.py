"""What a body raised: as a failed result, with a code that says whether a network was to blame, and as a diagnosis.

A diagnosis has the author's frames without ours and the chain of causes. It is bounded, and without secrets.
"""

import errno
import linecache
import logging
import socket
import ssl
import stat
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any, Literal, NamedTuple

from forge_tools.errors import ErrorCode, ForgeError, ToolFailure
from forge_tools.model.calls import ToolResult
from forge_tools.model.diagnosis import Diagnosis, Frame, Raised
from forge_tools.model.tools import ToolSpec
from forge_tools.sandbox.walls.profile import applied
from forge_tools.schema import clean_text, encode_json
from forge_tools.secrets.scrubber import LEAST_IN_FAILURES, Scrubber, scrubber_of

MAX_ERROR_CHARS = 4_000

_UNREACHABLE = frozenset(
    {
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENETRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
    }
)
_CLIENTS = frozenset({"httpx", "httpcore", "aiohttp", "requests", "urllib3", "http"})
_THEIRS = frozenset(
    {
        *("NetworkError", "TimeoutException", "RemoteProtocolError", "ProxyError"),  # httpx and httpcore
        *("ClientConnectionError", "ClientPayloadError"),  # aiohttp
        *("ConnectionError", "Timeout", "ChunkedEncodingError"),  # requests
        *("ConnectTimeoutError", "ReadTimeoutError", "ProtocolError"),  # urllib3
        "IncompleteRead",  # http.client
    }
)
"""Classes of network failures in these libraries, by name, since none of them need be installed."""

_WALLS = "walls=landlock: a call reaches its workspace, the system and what Python imports"
_PATHS = "Open more with FORGE_WALLS_PATHS, or in the tool with Capabilities(paths=...)"
_NETWORK = "A tool that needs the network declares Capabilities(accesses_network=True); see docs/walls.md"
_UNIX = 'Unix sockets are open to no tool with it: one that needs them declares walls="plain"; see docs/walls.md'

MOST_BYTES = 16_384
"""The largest diagnosis, as JSON."""

MOST_SOURCE = 4 << 20
"""Bytes of the largest file that a line of code is read from."""

_OURS = ("forge_tools", "workers")
_OUR_TOOLS = "forge_tools.tools"
_PACKAGES = ("site-packages", "dist-packages")
_STDLIB = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen "})

How = Literal["", "cause", "context", "member"]

_logger = logging.getLogger("forge_tools.tools")


def frame_of(thread: threading.Thread) -> FrameType | None:
    """Return what a thread runs now; None if it has ended."""
    return sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  documented, and the only way


@dataclass(frozen=True, slots=True)
class _Size:
    """How much is kept: exceptions, frames of each, characters of a message, and of a line of code or a path."""

    causes: int
    frames: int
    message: int
    text: int


_SIZES = (_Size(8, 30, 4_000, 300), _Size(8, 12, 800, 160), _Size(4, 6, 300, 120), _Size(0, 4, 120, 80))
"""Tried one after the other, until it fits."""


def failure_of(spec: ToolSpec, error: BaseException, parameters: Mapping[str, Any]) -> ToolResult:
    """Turn what a body raised for these parameters into a result, and log what its author did not foresee.

    A network failure is `retryable` where the tool says that its failures leave nothing behind (spec S2-20).
    """
    scrubber = scrubber_of(spec, parameters, LEAST_IN_FAILURES)
    try:
        result = _failure(spec, error, scrubber)
    except BaseException:  # noqa: BLE001 the attributes of a foreign exception are foreign code too
        result = _failure(spec, _look_alike(error), scrubber)
    result.diagnosis = diagnosis_of(error, scrubber)
    return result


def diagnosis_of(error: BaseException, scrubber: Scrubber | None) -> Diagnosis:
    """Describe an exception for people: which it is, where it was raised, and what led to it."""
    try:
        return _diagnosis(error, scrubber)
    except BaseException:  # noqa: BLE001 as above
        return _diagnosis(_look_alike(error), scrubber)


def _diagnosis(error: BaseException, scrubber: Scrubber | None) -> Diagnosis:
    for size in _SIZES:
        first, *causes = (_facts(one, how, scrubber, size) for one, how in islice(_chain(error), size.causes + 1))
        found = Diagnosis(**first, causes=tuple(Raised(**cause) for cause in causes))
        if len(encode_json(found.as_dict(), "diagnosis", 1 << 30)) <= MOST_BYTES:
            break
    return found


def text_of(error: BaseException, scrubber: Scrubber | None) -> str:
    """Return what an exception says, storable and without secrets; the name of its type if it says nothing."""
    return _shortened(said_by(error, scrubber) or type(error).__name__, MAX_ERROR_CHARS)


def named(error: BaseException, scrubber: Scrubber | None) -> str:
    """Return the type of an exception, and what it says if it says anything."""
    return ": ".join(filter(None, (type(error).__name__, said_by(error, scrubber))))[:MAX_ERROR_CHARS]


def said_by(error: object, scrubber: Scrubber | None) -> str:
    """Return what an exception or a note says, storable and without secrets; nothing if its own code raises."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 as above
        return ""
    text = text if scrubber is None else scrubber.text(text)  # first: nobody finds a secret that is cut
    return clean_text(text.strip())


def _failure(spec: ToolSpec, error: BaseException, scrubber: Scrubber | None) -> ToolResult:
    can_repeat = spec.capabilities.idempotent or spec.capabilities.retryable
    if isinstance(error, ToolFailure):
        more = {"retryable": error.retry and can_repeat, **({"hint": error.hint} if error.hint else {})}
        text = said_by(error, scrubber) or "failed without a reason"
        return ToolResult.fail(text, error_code=error.code, error_details=error.details, **more)
    way_out, details = _past_walls(error), {"type": type(error).__name__}
    said, walls = text_of(error, scrubber), way_out and f" ({_WALLS}. {way_out})"
    is_hopeless: dict[str, Any] = {"retryable": False} if way_out else {}
    if isinstance(error, ForgeError):
        return ToolResult.fail(said + walls, error_code=error.code, error_details=details)
    text = _with_type(error, said) + _first_of(error, scrubber) + walls
    # The log gets no causes, which may quote more.
    shown = error if scrubber is None else _look_alike(error, said).with_traceback(error.__traceback__)
    _logger.error("Unexpected error in %s", spec.name, exc_info=shown, extra={"tool": spec.name})
    if not any(_is_of_the_network(one) for one, _ in _chain(error)):
        text, code = f"Unexpected error: {text}", ErrorCode.EXECUTION_ERROR
        return ToolResult.fail(text, error_code=code, error_details=details, **is_hopeless)
    return ToolResult.fail(
        f"Service unavailable: {text}",
        error_code=ErrorCode.SERVICE_UNAVAILABLE,
        error_details=details,
        **(is_hopeless or ({"retryable": True} if can_repeat else {})),
    )


def _with_type(error: BaseException, text: str) -> str:
    """Name the type where the text alone says too little: a single word, a key, or how many exceptions a group has."""
    name = type(error).__name__
    is_clear = text == name or (" " in text and not isinstance(error, KeyError | BaseExceptionGroup))
    return text if is_clear else f"{name}: {text}"


def _first_of(error: BaseException, scrubber: Scrubber | None) -> str:
    """Name the first of a group, whose own text says little more than how many there are."""
    if not isinstance(error, BaseExceptionGroup):
        return ""
    members = (one for one, _ in _chain(error) if not isinstance(one, BaseExceptionGroup))
    return "".join(f", the first: {named(one, scrubber)}" for one in islice(members, 1))


def _past_walls(error: BaseException) -> str:
    """Say what a tool or its operator must declare to get what walls may have refused; empty if there are no walls."""
    walls = applied()
    found = (_way_out(one, has_network=walls.network) for one, _ in _chain(error)) if walls is not None else ()
    return next(filter(None, found), "")


def _way_out(error: BaseException, *, has_network: bool) -> str:
    match error:
        # The refusal of a socket names no file, that of a path does.
        case PermissionError(filename=None, errno=errno.EACCES) if _family_in(error.__traceback__) == socket.AF_UNIX:
            return _UNIX
        case PermissionError(filename=None, errno=errno.EACCES) | socket.gaierror() | socket.herror() if (
            not has_network
        ):
            return _NETWORK
        case PermissionError():
            return "See docs/walls.md" if error.filename is None else _PATHS
    return _NETWORK if _is_of_a_client(error) and not has_network else ""


def _family_in(trace: TracebackType | None) -> object:
    """Return the address family of a socket that could not be created."""
    making = (frame for frame, _ in walk_tb(trace) if frame.f_code is socket.socket.__init__.__code__)
    return next((frame.f_locals.get("family") for frame in making), None)


def _look_alike(error: BaseException, text: str = "") -> BaseException:
    """Return an exception of the same name, without the code, the attributes and the causes of the original."""
    look_alike: BaseException = type(type(error).__name__, (Exception,), {})(text)
    return look_alike


def _is_of_the_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | socket.gaierror | socket.herror | ssl.SSLError):
        return True
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    if type(error) is TimeoutError:  # of anything, unless a socket or a library raised it
        return str(error).endswith("timed out") or _passed_through_a_client(error)
    if type(error) is OSError and str(error).startswith("Multiple exceptions: [Errno "):
        return True  # asyncio, of several addresses
    return _is_of_a_client(error)


def _is_of_a_client(error: BaseException) -> bool:
    return any(_root(kind.__module__) in _CLIENTS and kind.__name__ in _THEIRS for kind in type(error).__mro__)


def _passed_through_a_client(error: BaseException) -> bool:
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(_root(frame.f_globals.get("__name__", "")) in _CLIENTS for frame in frames)


def _chain(error: BaseException) -> Iterator[tuple[BaseException, How]]:
    """Yield the exception and what led to it, as Python would print them; the members of a group after the group."""
    seen: set[int] = set()
    waiting: deque[tuple[BaseException, How]] = deque([(error, "")])
    while waiting:
        found, how = waiting.popleft()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found, how
        if isinstance(found, BaseExceptionGroup):
            waiting += [(member, "member") for member in found.exceptions]
        if found.__cause__ is not None:
            waiting.append((found.__cause__, "cause"))
        elif found.__context__ is not None and not found.__suppress_context__:
            waiting.append((found.__context__, "context"))


def _facts(error: BaseException, how: How, scrubber: Scrubber | None, size: _Size) -> dict[str, Any]:
    kind, notes = type(error), getattr(error, "__notes__", None)
    frames, left_out = _frames(error.__traceback__, size.frames)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return {
        "type": _shortened(said_by(f"{module}{kind.__qualname__}", None), size.text),
        "message": _shortened(said_by(error, scrubber), size.message),
        "how": how,
        "notes": tuple(_shortened(said_by(note, scrubber), size.text) for note in notes[:5])
        if isinstance(notes, list)
        else (),
        "frames": tuple(frame.shown(scrubber, size) for frame in frames),
        "left_out": left_out,
    }


class _Place(NamedTuple):
    """A frame before it is known whether it is kept."""

    code: str
    line: int
    function: str
    module: str
    root: str
    repeated: int = 0

    def shown(self, scrubber: Scrubber | None, size: _Size) -> Frame:
        return Frame(
            file=_shortened(said_by(self.code, scrubber), size.text, is_end=True),
            line=self.line,
            function=_shortened(said_by(self.function, scrubber), size.text),
            code=_shortened(said_by(_source(self.code, self.line), scrubber), size.text),
            own=not _is_library(self.code) or (bool(self.root) and _root(self.module) == self.root),
            repeated=self.repeated,
        )


def _frames(trace: TracebackType | None, most: int) -> tuple[list[_Place], int]:
    """Return the first and the last frames of the author's code and what it calls, and how many between them are left out.

    Frames of the standard library before these are dropped: its threads and loops run bodies. The package of the first
    frame is the author's, even if it is installed; if there is no such frame, the last frames are kept.
    """
    named = ((frame, line, str(frame.f_globals.get("__name__", ""))) for frame, line in walk_tb(trace))
    found = [(frame, line, module) for frame, line, module in named if not _is_ours(module)]
    begin = next((at for at, (frame, *_) in enumerate(found) if not _is_stdlib(frame.f_code.co_filename)), None)
    root = "" if begin is None else _root(found[begin][2])
    places = [
        place._replace(repeated=sum(1 for _ in same) - 1)
        for place, same in groupby(
            _Place(frame.f_code.co_filename, line, frame.f_code.co_qualname, module, root)
            for frame, line, module in (found[-50:] if begin is None else found[begin:])
        )
    ]
    kept = places if len(places) <= most else [*places[: most // 3], *places[most // 3 - most :]]
    return kept, sum(1 + place.repeated for place in places) - sum(1 + place.repeated for place in kept)


def _is_ours(module: str) -> bool:
    """Whether a frame of that module is left out; those of the built-in tools count as their author's."""
    return _root(module) in _OURS and not module.startswith(_OUR_TOOLS)


def _is_stdlib(file: str) -> bool:
    return file.startswith(_STDLIB) and not any(name in file for name in _PACKAGES)  # which lie below it


def _is_library(file: str) -> bool:
    return file.startswith(_STDLIB) or any(name in file for name in _PACKAGES)


def _root(module: str) -> str:
    return module.partition(".")[0]


def _source(file: str, line: int) -> str:
    """Return the line as the file has it now; empty if that is no regular file of reasonable size."""
    if file not in linecache.cache:
        with suppress(OSError, ValueError):
            found = Path(file).stat()
            if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_SOURCE:
                return ""
    return linecache.getline(file, line).strip()


def _shortened(text: str, most: int, *, is_end: bool = False) -> str:
    if len(text) <= most:
        return text
    return f"...{text[-most:]}" if is_end else f"{text[:most]}..."
