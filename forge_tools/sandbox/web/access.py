"""What tools may reach on the web: public addresses, and what the operator allows. Only checked ones are connected to."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from forge_tools.errors import SandboxError, ToolFailure

URL_INVALID = "URL_INVALID"
URL_BLOCKED = "URL_BLOCKED"
DNS_ERROR = "DNS_ERROR"
CONNECT_ERROR = "CONNECT_ERROR"

MAX_URL = 2048
PORTS = (80, 443, 8080, 8443)

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, in the order of the system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    """`allowed` are non-public hosts and networks that tools may reach; `search` is the provider and its key."""

    allowed: tuple[str, ...] = ()
    ports: tuple[int, ...] = PORTS
    obeys_robots: bool = False
    search: "Search | None" = None
    resolve: Resolve = field(default=resolve, compare=False)

    def checked(self, url: str, base: str = "") -> SplitResult:
        """Parse a URL that may be fetched, as far as the URL alone can show; `base` is the one that leads there."""
        if len(url) > MAX_URL:
            raise SandboxError(f"The URL has {len(url):,} characters; the limit is {MAX_URL:,}", URL_INVALID)
        try:
            parts = urlsplit(url := urljoin(base, url))
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
        except ValueError as error:
            raise SandboxError(f"The URL cannot be parsed: {error}", URL_INVALID) from error
        if parts.scheme not in {"http", "https"}:
            raise SandboxError(f"Only http and https URLs can be fetched, not '{parts.scheme}'", URL_INVALID)
        if "@" in parts.netloc:
            raise SandboxError("The URL contains a user name; such URLs are not fetched", URL_INVALID)
        if any(not one.isprintable() or one in ' \\"<>' for one in url):
            raise SandboxError("The URL has a character that must be escaped", URL_INVALID)
        host = _ascii_host(parts.hostname or "")
        if port not in self.ports and host not in self.allowed:
            ports = ", ".join(map(str, self.ports))
            raise SandboxError(f"Port {port} is not allowed; {ports} are. See FORGE_WEB_PORTS", URL_BLOCKED)
        shown = f"[{host}]" if ":" in host else host
        return parts._replace(netloc=shown if parts.port is None else f"{shown}:{parts.port}", fragment="")

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Resolve a host once. One forbidden address refuses all."""
        try:
            found = await self.resolve(host, port)
        except OSError as error:
            raise ToolFailure(f"The host {host} is unknown: {error.strerror}", code=DNS_ERROR, retry=True) from error
        except UnicodeError as error:
            raise SandboxError(f"{host} is not a host name", URL_INVALID) from error
        for one in map(ipaddress.ip_address, found if host not in self.allowed else ()):
            if not is_public(one) and not any(one in network for network in _networks(self.allowed)):
                what = f"{host} is not a public address. An operator may allow it: FORGE_WEB_ALLOWED"
                raise SandboxError(what, URL_BLOCKED)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The search provider. `url` is that of a SearXNG; `key` is sent only in a header."""

    provider: str
    url: str = ""
    key: str = field(default="", repr=False)


def is_public(address: Address) -> bool:
    """Whether the address is the same for everybody; addresses embedded in an address count, too."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        inner = list(_inside(address))
        if inner:
            return all(map(is_public, inner))
    # Multicast and reserved addresses may be global as well.
    return address.is_global and not address.is_multicast and not address.is_reserved


class Connector:
    """Connects an httpcore2 pool through `sockets`, to addresses just checked; the name stays that of the URL, for TLS."""

    def __init__(self, web: Web, sockets: Any) -> None:
        self._web = web
        self._sockets = sockets
        self.sleep = sockets.sleep

    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> Any:
        """Connect to the first address that answers; if none does, raise the error of the last."""
        addresses = await self._web.addresses(host, port)
        for address in addresses[:-1]:
            with suppress(Exception):  # there is another one
                return await self._sockets.connect_tcp(address, port, *args, **options)
        return await self._sockets.connect_tcp(addresses[-1], port, *args, **options)


def _inside(address: ipaddress.IPv6Address) -> Iterator[Address]:
    if address.ipv4_mapped:
        yield address.ipv4_mapped
    if address.sixtofour:
        yield address.sixtofour
    if address.teredo:
        yield from address.teredo
    if address in _NAT64:
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def _networks(allowed: Iterable[str]) -> Iterator[Network]:
    for one in allowed:
        with suppress(ValueError):  # the name of a host
            yield ipaddress.ip_network(one)


def _ascii_host(host: str) -> str:
    """Return the host as passed to the system; an internationalized name must be what it appears to be."""
    host = host.lower().removesuffix(".")
    if not host or "%" in host:
        raise SandboxError("The URL has no host", URL_INVALID)
    if host.isascii():
        return host
    try:
        name = host.encode("idna").decode()
    except UnicodeError as error:
        raise SandboxError("The host is not a valid name. Write it as xn--...", URL_INVALID) from error
    if name.encode().decode("idna") != host:
        raise SandboxError(f"The host name is ambiguous. Write the one that is meant, such as {name}", URL_INVALID)
    return name
