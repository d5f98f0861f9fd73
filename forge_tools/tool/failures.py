"""What a body raised, as a failed result: a sentence, a code, and whether a network or service was to blame."""

import errno
import logging
import socket
import ssl
from collections.abc import Iterator

from forge_tools.errors import ErrorCode, ForgeError, ToolFailure
from forge_tools.model import ToolResult, ToolSpec
from forge_tools.sandbox.walls.profile import worn
from forge_tools.secrets import Scrubber
from forge_tools.tool.diagnosis import diagnosis_of, said_by

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
"""Classes of network failures in the libraries above. They are known by name, as none of the libraries need be installed."""

_WALLS = "walls=landlock: a call reaches its workspace, the system and what Python imports"

_logger = logging.getLogger("forge_tools.tools")


def failure_of(spec: ToolSpec, error: BaseException, scrubber: Scrubber | None) -> ToolResult:
    """Turn what a body raised into a result, and log what its author did not foresee.

    A network failure is `retryable` where the tool says that its failures leave nothing behind (spec S2-20).
    """
    result = _failure(spec, error, scrubber)
    result.diagnosis = diagnosis_of(error, scrubber)
    return result


def _failure(spec: ToolSpec, error: BaseException, scrubber: Scrubber | None) -> ToolResult:
    can_repeat = spec.capabilities.idempotent or spec.capabilities.retryable
    if isinstance(error, ToolFailure):
        more = {"retryable": error.retry and can_repeat, **({"hint": error.hint} if error.hint else {})}
        text = said_by(error, scrubber) or "failed without saying why"
        return ToolResult.fail(text, error_code=error.code, error_details=error.details, **more)
    text, details = text_of(error, scrubber) + _of_walls(error), {"type": type(error).__name__}
    if isinstance(error, ForgeError):
        return ToolResult.fail(text, error_code=error.code, error_details=details)
    shown = error if scrubber is None else _disguised(error, scrubber)
    _logger.error("Unexpected error in %s", spec.name, exc_info=shown, extra={"tool": spec.name})
    if not any(map(_is_of_the_network, _causes(error))):
        return ToolResult.fail(f"Unexpected error: {text}", error_code=ErrorCode.EXECUTION_ERROR, error_details=details)
    return ToolResult.fail(
        f"Service unavailable: {text}",
        error_code=ErrorCode.SERVICE_UNAVAILABLE,
        error_details=details,
        **({"retryable": True} if can_repeat else {}),
    )


def _of_walls(error: BaseException) -> str:
    """What may be behind a refusal of the kernel, where walls stand, and the way out."""
    if worn() is None or not isinstance(error, PermissionError):
        return ""
    if error.filename is None:
        return f" ({_WALLS}. A tool that needs the network declares Capabilities(accesses_network=True); see docs/walls.md)"
    return f" ({_WALLS}. Open more with FORGE_WALLS_PATHS, or in the tool with Capabilities(paths=...))"


def text_of(error: BaseException, scrubber: Scrubber | None) -> str:
    """Return what an exception says, storable and without secrets; the name of its type if it says nothing."""
    text = said_by(error, scrubber) or type(error).__name__
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}..."


def _disguised(error: BaseException, scrubber: Scrubber) -> BaseException:
    """Copy an exception for the log: its type's name, traceback and scrubbed text, without causes that may quote more."""
    look_alike = type(type(error).__name__, (Exception,), {})
    disguise: BaseException = look_alike(text_of(error, scrubber))
    return disguise.with_traceback(error.__traceback__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what is at the bottom of it: libraries wrap what they met in errors of their own."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        waiting.append(found.__cause__ or (None if found.__suppress_context__ else found.__context__))
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions


def _is_of_the_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | socket.gaierror | socket.herror | ssl.SSLError):
        return True
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    if type(error) is TimeoutError:  # of anything, unless a socket or a library raised it
        return str(error).endswith("timed out") or _passed_through_a_client(error)
    if type(error) is OSError and str(error).startswith(
        "Multiple exceptions: [Errno "
    ):  # asyncio, of several addresses
        return True
    return any(_root(kind.__module__) in _CLIENTS and kind.__name__ in _THEIRS for kind in type(error).__mro__)


def _passed_through_a_client(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if _root(trace.tb_frame.f_globals.get("__name__", "")) in _CLIENTS:
            return True
        trace = trace.tb_next
    return False


def _root(module: str) -> str:
    return module.partition(".")[0]
