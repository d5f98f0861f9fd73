"""The server over streamable HTTP: one endpoint, a guard before it, and a clean end."""

import asyncio
import contextlib
import hmac
import ipaddress
import socket
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
import uvicorn
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forge_tools.errors import ConfigurationError
from forge_tools.mcp.server import ToolServer
from forge_tools.signals import ENDINGS, not_ignored

PATH = "/mcp"
END_PATIENCE = 2
"""Seconds that open connections get when the server is to end."""

_GONE = "forge_tools.gone"


class Http:
    """Any number of clients at one endpoint."""

    def __init__(self, listening: socket.socket, token: str, largest_body: int, *, is_local: bool) -> None:
        self.listening = listening
        self.is_local = is_local
        self._token = token
        self._largest = largest_body

    @classmethod
    def bind(cls, address: str, token: str, largest_body: int) -> Self:
        """Listen at `HOST:PORT`; a token is required if other machines can connect."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]") or "127.0.0.1"
        if not port.isdecimal() or int(port) > 65_535:
            raise ConfigurationError(f"{address!r} is not HOST:PORT; pass something like 127.0.0.1:8765.")
        if not token and not is_loopback(host):
            raise ConfigurationError(
                f"{host} can be reached from other machines, and anyone who reaches it can run every tool. Set FORGE_MCP_TOKEN to a "
                "secret that clients send as `Authorization: Bearer ...`, or listen at 127.0.0.1."
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, int(port)), family=family)
        except OSError as error:
            raise ConfigurationError(f"Cannot listen at {address}: {error.strerror}. Give another port.") from error
        # Judged by the name, not its address: where a machine's own name resolves to 127.0.1.1, clients send it as Host.
        return cls(listening, token, largest_body, is_local=is_loopback(host))

    @property
    def url(self) -> str:
        host, port = self.listening.getsockname()[:2]
        return f"http://[{host}]:{port}{PATH}" if ":" in host else f"http://{host}:{port}{PATH}"

    async def serve(self, server: ToolServer) -> None:
        """Serve until SIGTERM, SIGHUP or Ctrl-C, which end calls in flight, subscriptions and every connection."""
        unguarded = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # the guard before it does that
        endpoint = server.streamable_http_app(
            streamable_http_path=PATH, transport_security=unguarded, max_request_body_size=self._largest
        )
        server.middleware.insert(1, cancel_when_gone)  # within the span of the request, around all else
        guard = Guard(endpoint, token=self._token, is_local=self.is_local)
        config = uvicorn.Config(
            guard,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=END_PATIENCE,
            server_header=False,
        )
        uvicorn_server = _Uvicorn(config)

        def end(number: int) -> None:
            uvicorn_server.handle_exit(number, None)
            guard.end_calls()
            server.subscriptions.close()

        for number in not_ignored(*ENDINGS):
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        await uvicorn_server.serve(sockets=[self.listening])


class Guard:
    """Refuses requests before anything reads them: token holders may pass, but no web page that was directed here.

    If only this machine is served (`is_local`), Host must name it, because a page whose name was pointed here sends its
    own. Origin, which browsers send, must be of this machine or of the endpoint itself. A token, if configured, must be
    sent. Each request that passes is marked when the client hangs up, or the server is ending.
    """

    def __init__(self, app: ASGIApp, *, token: str, is_local: bool) -> None:
        self._app = app
        self._token = token
        self._is_local = is_local
        self._open: set[asyncio.Event] = set()

    def end_calls(self) -> None:
        for gone in self._open:
            gone.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if (refusal := self._refusal(Headers(scope=scope))) is not None:
            await refusal(scope, receive, send)
            return
        gone = scope[_GONE] = asyncio.Event()

        async def watched() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                gone.set()
            return message

        self._open.add(gone)
        try:
            await self._app(scope, watched, send)
        finally:
            self._open.discard(gone)

    def _refusal(self, headers: Headers) -> Response | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._is_local and not is_loopback(_name(f"//{host}")):
            return PlainTextResponse("The Host header does not name this machine.", 421)
        if origin is not None and not self._may_embed(origin, host):
            return PlainTextResponse("Pages from that origin may not use this server.", 403)
        if self._token and not self._has_token(headers.get("authorization", "")):
            said = "Send the token of this server: Authorization: Bearer ..."
            return PlainTextResponse(said, 401, {"www-authenticate": "Bearer"})
        return None

    def _may_embed(self, origin: str, host: str) -> bool:
        return origin.partition("://")[2] == host or (self._is_local and is_loopback(_name(origin)))

    def _has_token(self, sent: str) -> bool:
        scheme, _, given = sent.partition(" ")
        # Starlette decodes headers as Latin-1, whatever letters a token has.
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._token.encode())


async def cancel_when_gone(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Cancel a call of a tool when its client hangs up or the server is ending.

    Streams cannot be resumed here, so the answer would be lost.
    """
    gone = ctx.request.scope.get(_GONE) if ctx.request is not None and ctx.method == "tools/call" else None
    if gone is None:
        return await call_next(ctx)
    with anyio.CancelScope() as scope:
        watching = asyncio.ensure_future(_cancel(scope, gone))
        try:
            return await call_next(ctx)
        finally:
            watching.cancel()
    raise MCPError(
        code=CONNECTION_CLOSED, message="The call was cancelled: its client has disconnected, or the server is ending"
    )


async def _cancel(scope: anyio.CancelScope, gone: asyncio.Event) -> None:
    await gone.wait()
    scope.cancel()


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine, reachable only from itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the loop: uvicorn itself would end the process by the same signal after everything."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
