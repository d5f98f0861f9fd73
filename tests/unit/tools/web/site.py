"""A private site: what is sent for each path, byte for byte, and where its name resolves to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from forge_tools.sandbox.web.access import Search, Web

HOST = "site.example"
Send = Callable[[asyncio.StreamWriter], Awaitable[None]]


def page(body: bytes, kind: str = "text/html; charset=utf-8", status: int = 200, *headers: str) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def redirect(to: str) -> bytes:
    return page(b"", "text/plain", 302, f"Location: {to}")


@dataclass
class Site:
    """Serves `answers` by path on a port of 127.0.0.1. What was asked stands in `requests`, in order."""

    answers: Mapping[str, bytes | Send]
    port: int = 0
    requests: list[str] = field(default_factory=list)

    def url(self, path: str = "/", host: str = HOST) -> str:
        return f"http://{host}:{self.port}{path}"

    def web(self, addresses: Mapping[str, list[str]] | None = None, *, robots: bool = False) -> Web:
        """What may be reached: this site, by any name that leads to it."""
        known = addresses or {}

        async def resolve(host: str, port: int) -> list[str]:
            return known.get(host, ["127.0.0.1"])

        return Web(allowed=("127.0.0.1/32",), ports=(self.port,), resolve=resolve, obeys_robots=robots)

    def searched(self, provider: str) -> Web:
        """The same, with a provider that it stands for."""
        search = Search(provider=provider, url=f"http://127.0.0.1:{self.port}", key="k3y-of-the-provider")
        return Web(allowed=("127.0.0.1",), ports=(self.port,), search=search)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(request)
            answer = self.answers.get(request.split()[1].partition("?")[0], page(b"nothing here", status=404))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def site(answers: Mapping[str, bytes | Send]) -> AsyncIterator[Site]:
    """A site while it is open."""
    one = Site(answers)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
