"""The way out of walled commands that may reach certain hosts: an HTTP proxy, on a port of the command's own network.

It tunnels (`CONNECT`) and forwards plain HTTP. It does not look into TLS, so a list of hosts stops neither data that goes to
an allowed host nor what that host passes on.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Coroutine
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

from forge_tools.sandbox.walls.namespaces import PROXY, has_proxy
from forge_tools.sandbox.web.access import Resolve, is_public, resolve

PORTS = (80, 443)
"""The ports that an entry without one allows."""

MOST_CONNECTIONS = 128
"""At the same time, of one command; further ones are closed at once."""

_ANY = "*."
_HEAD_BYTES = 1 << 16
_CHUNK = 1 << 16
_HEAD_SECONDS = 30.0
_CONNECT_SECONDS = 15.0
_ACCEPT_AGAIN_SECONDS = 0.1
_MOST_REFUSED = 50

logger = logging.getLogger("tool.egress")  # what tools log is recorded with their calls


def covers(entry: str, host: str, port: int) -> bool:
    """Whether an entry of `FORGE_EGRESS` allows a place: `api.example.com`, `*.example.org`, or either with a port."""
    name, _, number = entry.partition(":")
    is_named = host.endswith(name[1:]) if name.startswith(_ANY) else host == name
    return is_named and (port == int(number) if number else port in PORTS)


def variables(network: str) -> dict[str, str]:
    """Return what leads the programs of a command to its proxy, if its network has one."""
    if not has_proxy(network):
        return {}
    proxy, local = f"http://{PROXY[0]}:{PROXY[1]}", "localhost,127.0.0.1,::1"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    # Node.js minds the others only if it is told to.
    return dict.fromkeys(names, proxy) | {"NO_PROXY": local, "no_proxy": local, "NODE_USE_ENV_PROXY": "1"}


class Egress:
    """The proxy of one command with this network; `refused` are the places that it refused, the first fifty."""

    def __init__(self, network: str, *, resolve: Resolve = resolve) -> None:
        self._allowed = network.split(",") if has_proxy(network) else []
        self._resolve = resolve
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused: list[str] = []

    def serve(self, listener: socket.socket) -> None:
        """Serve this listening socket, on the running loop, until `close`."""
        self._begin(self._accept(listener))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            listener.settimeout(0)
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError:  # this process has no handle to spare, or the client is gone: others will come
                    await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
                    continue
                if len(self._tasks) > MOST_CONNECTIONS:  # one of them accepts
                    connection.close()
                else:
                    self._begin(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=_HEAD_BYTES)
        with closing(writer), suppress(TimeoutError, asyncio.IncompleteReadError, OSError):
            try:
                await self._pass_on(reader, writer)
            except _RefusedError as refused:
                writer.write(refused.response())
                await writer.drain()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                host, port, request = _asked(await reader.readuntil(b"\r\n\r\n"))
        except (ValueError, asyncio.LimitOverrunError) as error:
            raise _RefusedError("400 Bad Request", "This proxy takes CONNECT and http:// URLs") from error
        upstream, out = await self._connect(host, port)
        with closing(out):
            if request:
                out.write(request)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_copy(reader, out), _copy(upstream, writer))

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address that answers. A name that is listed itself may have any; below a pattern they are public."""
        place = f"{host}:{port}"
        rules = [entry for entry in self._allowed if covers(entry, host, port)]
        if not rules:
            self._note(place)
            raise _RefusedError("403 Forbidden", f"{place} is not among the hosts that may be reached")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                addresses = await self._resolve(host, port)
                is_listed = not all(entry.startswith(_ANY) for entry in rules)
                if not is_listed and not all(is_public(ipaddress.ip_address(one)) for one in addresses):
                    self._note(place)
                    what = f"The address of {place} is not public, and only a pattern allows that name"
                    raise _RefusedError("403 Forbidden", what)
                for address in addresses[:-1]:
                    with suppress(OSError):  # there is another one
                        return await asyncio.open_connection(address, port)
                return await asyncio.open_connection(addresses[-1], port)
        except (OSError, UnicodeError) as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else error
            raise _RefusedError("502 Bad Gateway", f"{place} cannot be reached: {reason}") from error

    def _note(self, place: str) -> None:
        if place not in self.refused and len(self.refused) < _MOST_REFUSED:
            self.refused.append(place)
            logger.warning("Refused to connect to %s, which is not among the hosts that may be reached", place)


def serve_while_open(network: str, listener: socket.socket, line: socket.socket) -> None:
    """Be the proxy of one command until the other end of a line is closed."""

    async def work() -> None:
        line.settimeout(0)
        egress = Egress(network)
        egress.serve(listener)
        await asyncio.get_running_loop().sock_recv(line, 1)
        await egress.close()

    asyncio.run(work())


class _RefusedError(Exception):
    def response(self) -> bytes:
        status, text = self.args
        body = f"{text}.\n".encode()
        fields = f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close"
        return f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n".encode() + body


def _asked(head: bytes) -> tuple[str, int, bytes]:
    """Return the host and port that a request is for, and what to send there first: nothing for a tunnel."""
    line, *rest = head.decode("latin-1").split("\r\n")
    method, target, version = line.split(" ")
    if method == "CONNECT":
        host, _, number = target.rpartition(":")
        return host.strip("[]").lower().removesuffix("."), int(number), b""
    parts = urlsplit(target)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(target)
    path = parts._replace(scheme="", netloc="").geturl() or "/"
    # Without what is between the client and the proxy; one request a connection, so that the next is judged, too.
    fields = [field for field in rest if not field.lower().startswith(("connection:", "proxy-", "keep-alive:"))]
    request = [f"{method} {path} {version}", "Connection: close", *fields]
    return parts.hostname.removesuffix("."), parts.port or 80, "\r\n".join(request).encode("latin-1")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
