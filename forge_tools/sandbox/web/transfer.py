"""Fetches one URL: every hop checked, with limits on time, bytes and hops, and revealing nothing about this host."""

import asyncio
import codecs
import re
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult
from urllib.robotparser import RobotFileParser

from forge_tools.artifacts.media import text_codec
from forge_tools.errors import ErrorCode, SandboxError, ToolFailure
from forge_tools.model.content import human
from forge_tools.sandbox.web.access import CONNECT_ERROR, URL_BLOCKED, Connector, Web

AGENT = "forge-tools"
MAX_HOPS = 5
MAX_BYTES = 10 << 20
RESPONSE_TOO_LARGE = "RESPONSE_TOO_LARGE"
REDIRECT_OFF_HOST = "REDIRECT_OFF_HOST"
UNSUPPORTED_CONTENT = "UNSUPPORTED_CONTENT"
HTTP_STATUS = "HTTP_STATUS"

_MOST_RATIO = 100
_RATIO_COUNTS_FROM = 1 << 20
_ROBOTS_BYTES = 500_000
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_META = re.compile(rb"""<meta[^>]{0,500}?charset\s*=\s*["']?\s*([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The final answer of a server. `media_type` has no parameters; `charset` is that of its header."""

    url: str
    status: int
    media_type: str
    charset: str | None
    body: bytes = b""
    location: str | None = None
    retry_after: str | None = None

    @property
    def encoding(self) -> str:
        """The encoding of its text: by its byte order mark, else its header, else the page, else UTF-8."""
        meta = _META.search(self.body[:2048])
        marks = [name for mark, name in _BOMS if self.body.startswith(mark)]
        told = (*marks, self.charset, meta[1].decode() if meta else None, "utf-8")
        return next(name for name in told if name and text_codec(name))

    @property
    def text(self) -> str:
        return self.body.decode(self.encoding, "replace")


async def fetch(
    web: Web, url: str, seconds: float, headers: Mapping[str, str], *, body: bytes | None = None,
    follow_off_host: bool = False,
) -> Response:  # fmt: skip
    """Fetch a URL with a GET, following redirects; or send a body to one that the operator configured, with a POST."""
    try:
        async with asyncio.timeout(seconds):
            if body is not None:
                return await _once(web, web.checked(url), headers, body)
            return await _follow(web, url, headers, follow_off_host=follow_off_host)
    except TimeoutError as error:
        what = f"The server did not send the whole response within {seconds:g}s"
        raise ToolFailure(what, code=ErrorCode.TIMEOUT, retry=True) from error


async def _follow(web: Web, url: str, headers: Mapping[str, str], *, follow_off_host: bool) -> Response:
    parts = web.checked(url)
    for _ in range(MAX_HOPS + 1):
        if web.obeys_robots:
            await _require_welcome(web, parts)
        response = await _once(web, parts, headers)
        if response.location is None:
            return response
        target = web.checked(response.location, parts.geturl())
        if parts.scheme == "https" and target.scheme == "http":
            raise SandboxError(f"{parts.hostname} redirects from https to http, to {target.geturl()}", URL_BLOCKED)
        if target.hostname != parts.hostname and not follow_off_host:
            where = target.geturl()
            raise ToolFailure(
                f"{parts.hostname} redirects to another host: {where}",
                hint="Fetch that URL if it is the one you want.",
                code=REDIRECT_OFF_HOST,
                details={"location": where},
            )
        parts = target
    raise ToolFailure(f"{url} redirects more than {MAX_HOPS} times", code=HTTP_STATUS)


async def _require_welcome(web: Web, parts: SplitResult) -> None:
    told = parts._replace(path="/robots.txt", query="").geturl()
    rules, said = RobotFileParser(), ""
    try:
        robots = await _follow(replace(web, obeys_robots=False), told, {}, follow_off_host=False)
        said = robots.text[:_ROBOTS_BYTES] if robots.status == 200 else ""
    except (SandboxError, ToolFailure) as error:
        if error.code not in {REDIRECT_OFF_HOST, URL_BLOCKED, HTTP_STATUS}:
            raise  # an answer that leads elsewhere, or nowhere, says nothing about this host
    rules.parse(said.splitlines())
    if not rules.can_fetch(AGENT, parts.geturl()):
        raise SandboxError(f"The robots.txt of {parts.hostname} asks programs to leave this URL alone", URL_BLOCKED)


async def _once(web: Web, parts: SplitResult, headers: Mapping[str, str], body: bytes | None = None) -> Response:
    """Send one request on its own connection; the body of a redirect is not read."""
    with _required():
        import httpcore2

    httpcore: Any = httpcore2  # `Connector` has its methods, but not its base, which would load it
    method = "GET" if body is None else "POST"
    sent = {"User-Agent": AGENT, "Accept-Encoding": "gzip, br", "Accept": "*/*", **headers}
    pool = httpcore.AsyncConnectionPool(network_backend=Connector(web, httpcore.AnyIOBackend()))
    with _explained(parts, httpcore):
        async with pool, pool.stream(method, parts.geturl(), headers=[*sent.items()], content=body) as answer:
            told = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in answer.headers]
            facts = dict(reversed(told))  # of a field that is repeated, the first one counts
            if answer.status in _REDIRECTS and "location" in facts:
                return _response(parts, answer.status, facts)
            chunks = _unpacked(answer.aiter_stream(), facts.get("content-encoding", "").lower())
            data = bytearray()
            async for chunk in chunks:
                data += chunk
                _require_room(len(data), MAX_BYTES)
            return _response(parts, answer.status, facts, bytes(data))


def _response(parts: SplitResult, status: int, facts: Mapping[str, str], body: bytes | None = None) -> Response:
    kind, _, rest = facts.get("content-type", "").partition(";")
    charset = re.search(r"charset\s*=\s*[\"']?([A-Za-z0-9_.:-]+)", rest, re.IGNORECASE)
    return Response(
        url=parts.geturl(),
        status=status,
        media_type=kind.strip().lower(),
        charset=charset[1] if charset else None,
        body=body or b"",
        location=facts["location"] if body is None else None,
        retry_after=facts.get("retry-after"),
    )


async def _unpacked(stream: AsyncIterable[bytes], encoding: str) -> AsyncIterator[bytes]:
    """Yield the decompressed content in pieces: a megabyte may expand to a hundred."""
    if encoding in {"", "identity"}:
        async for chunk in stream:
            yield chunk
        return
    if encoding not in _UNPACKERS:
        what = f"The server compressed it with {encoding[:40]!r}, which was not requested"
        raise ToolFailure(what, code=UNSUPPORTED_CONTENT)
    unpacker, came, gave = _UNPACKERS[encoding](), 0, 0
    async for chunk in stream:
        came += len(chunk)
        for piece in unpacker.pieces(chunk):
            gave += len(piece)
            if gave > _RATIO_COUNTS_FROM:
                _require_room(gave, _MOST_RATIO * came)
            yield piece
    if came and not unpacker.is_over:
        raise zlib.error("its end is missing")


class _Zlib:
    def __init__(self) -> None:
        self._one = zlib.decompressobj(wbits=47)  # the format, gzip or zlib, by its header

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        while chunk:
            yield self._one.decompress(chunk, _RATIO_COUNTS_FROM)
            chunk = self._one.unconsumed_tail

    @property
    def is_over(self) -> bool:
        return self._one.eof


class _Brotli:
    def __init__(self) -> None:
        with _required():
            import brotli

        self._one, self._error = brotli.Decompressor(), brotli.error

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        try:
            piece = self._one.process(chunk, output_buffer_limit=_RATIO_COUNTS_FROM)
            while piece or not self._one.can_accept_more_data():  # it may say that it can while it holds output
                yield piece
                piece = self._one.process(b"", output_buffer_limit=_RATIO_COUNTS_FROM)
        except self._error as error:
            raise zlib.error(str(error)) from error

    @property
    def is_over(self) -> bool:
        return bool(self._one.is_finished())


_UNPACKERS: Mapping[str, type[_Zlib | _Brotli]] = {"br": _Brotli, **dict.fromkeys(("gzip", "x-gzip", "deflate"), _Zlib)}


def _require_room(size: int, limit: int) -> None:
    if size > limit:
        text = f"The answer is over the limit: {human(MAX_BYTES)}, or {_MOST_RATIO} times its compressed size"
        raise ToolFailure(text, code=RESPONSE_TOO_LARGE, details={"limit": MAX_BYTES})


@contextmanager
def _explained(parts: SplitResult, httpcore: Any) -> Iterator[None]:
    try:
        yield
    except zlib.error as error:
        what = f"The compressed response of {parts.hostname} is damaged: {error}"
        raise ToolFailure(what, code=UNSUPPORTED_CONTENT) from error
    except (OSError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
        what = str(error) or type(error).__name__
        raise ToolFailure(f"{parts.hostname}: {what}", code=CONNECT_ERROR, retry=True) from error


@contextmanager
def _required() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        lacks = f"This worker lacks {error.name}, which the web tools need. Run pip install 'forge-tools[web]'"
        raise SandboxError(lacks, ErrorCode.ENGINE_NOT_AVAILABLE) from error
