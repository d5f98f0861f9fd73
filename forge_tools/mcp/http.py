"""The server over streamable HTTP: one endpoint, a guard before it, and a clean end."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.transport_security import TransportSecuritySettings

from forge_tools.errors import ConfigurationError
from forge_tools.mcp.departure import App, Departures
from forge_tools.mcp.guard import Guard, is_loopback
from forge_tools.signals import heeded

PATH = "/mcp"
END_PATIENCE = 2
"""Seconds that open connections have when the server is told to end."""


def bind(address: str, token: str) -> tuple[socket.socket, bool]:
    """Listen at `HOST:PORT`, and say whether only this machine can come there; without a token that is a must.

    Raises:
        ConfigurationError: the address is none, is taken, or needs a token.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65_535:
        raise ConfigurationError(f"{address!r} is no HOST:PORT; give one such as 127.0.0.1:8765.")
    if not token and not is_loopback(host):
        raise ConfigurationError(
            f"{host} can be reached from other machines, and whoever reaches it may run every tool. Set FORGE_MCP_TOKEN to a "
            "secret that clients send as `Authorization: Bearer ...`, or listen at 127.0.0.1."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family), is_loopback(host)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen at {address}: {error.strerror or error}. Give another port."
        ) from error


def url_of(listening: socket.socket) -> str:
    """Where clients find the endpoint."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}{PATH}" if ":" in host else f"http://{host}:{port}{PATH}"


def application(server: Server[Any], *, token: str, is_local: bool, largest_body: int) -> App:
    """The ASGI application: guard, departures, and the SDK's own."""
    unguarded = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # the guard before it does that
    endpoint = server.streamable_http_app(
        streamable_http_path=PATH, transport_security=unguarded, max_request_body_size=largest_body
    )
    return Guard(Departures(endpoint), token=token, is_local=is_local)


async def serve_http(application: App, listening: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, which end calls in flight and every connection."""
    config = uvicorn.Config(
        application, log_config=None, access_log=False, timeout_graceful_shutdown=END_PATIENCE, server_header=False
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in heeded(signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    await server.serve(sockets=[listening])


class _Server(uvicorn.Server):
    """Leaves signals to the loop: uvicorn's own way ends the process by the signal once more, after everything."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
