"""A TCP proxy that loses replies, refuses, freezes or swallows data on command."""

import asyncio
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from tests.waiting import reached


class Proxy:
    """Stands between a Store and its PostgreSQL server."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._delivering = asyncio.Event()
        self._delivering.set()
        self.replies_to_lose = 0
        self.stays_away_after_loss = False
        self.lost = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._flowing.set()
        self._delivering.set()
        await self.go_away()
        await reached(lambda: not self._tasks)

    @property
    def url(self) -> str:
        user = self._target.netloc.rpartition("@")[0]
        return urlunsplit(self._target._replace(netloc=f"{user}@127.0.0.1:{self.port}"))

    async def go_away(self) -> None:
        """Refuse connections from now on, and cut those there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def come_back(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def freeze(self) -> None:
        """Keep connections open and pass nothing on."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def swallow(self) -> None:
        """Accept connections and lose all that is sent: one that lost something stays silent until its client hangs up."""
        self._delivering.clear()

    def stop_swallowing(self) -> None:
        self._delivering.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target.hostname, self._target.port
        there, back = await asyncio.open_connection(host, port)
        self._writers |= {writer, back}
        pumps = [
            asyncio.create_task(self._pump(reader, back)),
            asyncio.create_task(self._pump(there, writer, replies=True)),
        ]
        self._tasks.update(pumps)
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, back):
            end.transport.abort()
            self._writers.discard(end)
        await asyncio.wait(pumps)
        self._tasks.difference_update(pumps)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, replies: bool = False) -> None:
        is_silent = False
        try:
            while data := await source.read(1 << 20):  # no deadline: it goes on until a side hangs up
                await self._flowing.wait()
                is_silent |= not self._delivering.is_set()
                if is_silent:
                    continue
                if replies and self.replies_to_lose:
                    self.replies_to_lose -= 1
                    if self.stays_away_after_loss:
                        await self.go_away()
                    self.lost.set()
                    return
                sink.write(data)
                await sink.drain()
            await self._delivering.wait()  # its farewell is lost as well
        except ConnectionError:
            return
