"""Everything together: a transport, an executor, and the server between them until it is told to end."""

import asyncio
import signal
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol, Self

from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.executor import ToolExecutor
from forge_tools.mcp.calling import END_PATIENCE
from forge_tools.mcp.http import application, bind, serve_http, url_of
from forge_tools.mcp.offer import Offer
from forge_tools.mcp.resources import ArtifactReader
from forge_tools.mcp.server import ToolServer
from forge_tools.mcp.stdio import Wire, serve_stdio
from forge_tools.mcp.thread import ToolThread
from forge_tools.signals import heeded
from forge_tools.storage import open_store


class Transport(Protocol):
    """Carries messages between clients and a server."""

    async def serve(self, server: ToolServer) -> None: ...


class Stdio:
    """One client at the standard streams."""

    def __init__(self, wire: Wire, longest_message: int) -> None:
        self._wire = wire
        self._longest = longest_message

    @classmethod
    def claim(cls, settings: Settings) -> Self:
        """Take the standard streams; what is printed from here on goes to the error stream."""
        return cls(Wire.claim(), _longest_message(settings))

    async def serve(self, server: ToolServer) -> None:
        """Serve until the client closes its end, SIGTERM or Ctrl-C."""
        await _until_told(serve_stdio(server, self._wire, self._longest))


class Http:
    """Any number of clients at one endpoint."""

    def __init__(self, listening: socket.socket, settings: Settings, *, is_local: bool) -> None:
        self._listening = listening
        self._settings = settings
        self._is_local = is_local

    @classmethod
    def bind(cls, address: str, settings: Settings) -> Self:
        """Listen at `HOST:PORT`.

        Raises:
            ConfigurationError: that cannot be, or not without a token.
        """
        listening, is_local = bind(address, settings.mcp_token.get_secret_value())
        return cls(listening, settings, is_local=is_local)

    @property
    def url(self) -> str:
        return url_of(self._listening)

    async def serve(self, server: ToolServer) -> None:
        """Serve until SIGTERM or Ctrl-C."""
        endpoint = application(
            server,
            token=self._settings.mcp_token.get_secret_value(),
            is_local=self._is_local,
            largest_body=_longest_message(self._settings),
        )
        await serve_http(endpoint, self._listening)


def serve_workers(transport: Transport, settings: Settings, offer: Offer) -> None:
    """Serve the tools of the catalogue, run on workers.

    Raises:
        StorageError: the database cannot be reached or used.
    """

    async def serve() -> None:
        client = ExecutorClient(settings)
        await client.open()
        try:
            async with await open_store(
                settings.database, connect_timeout=settings.connect_timeout, artifact_dir=settings.artifact_dir
            ) as store:
                await transport.serve(ToolServer(client, offer, store.artifacts))
        finally:
            with suppress(TimeoutError):  # a database that is away must not keep this process from ending
                await asyncio.wait_for(client.close(), END_PATIENCE)

    asyncio.run(serve())


def serve_here(
    transport: Transport, executor: ToolExecutor, offer: Offer, artifacts: ArtifactReader | None = None
) -> None:
    """Serve the tools of an executor, run in this process, and what of their outputs was kept."""

    async def serve(tools: ToolThread) -> None:
        await transport.serve(ToolServer(tools, offer, artifacts))

    with ToolThread(executor) as tools:
        asyncio.run(serve(tools))


def _longest_message(settings: Settings) -> int:
    """Arguments as large as they may be, written as text that needs twice the room."""
    return 2 * settings.max_parameter_bytes


async def _until_told(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    for number in heeded(signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task
