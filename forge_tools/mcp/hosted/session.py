"""One session with a server, from start to end: the SDK requires both in one task."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from mcp import Client
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import Implementation, PaginatedRequestParams, Tool, ToolListChangedNotification
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from forge_tools import __version__
from forge_tools.errors import ConfigurationError
from forge_tools.mcp.hosted.configuration import Server
from forge_tools.mcp.hosted.process import ServerProcess
from forge_tools.mcp.hosted.walls import ServerWalls
from forge_tools.schema import clean_text
from forge_tools.secrets.scrubber import Scrubber
from forge_tools.urls import without_passwords

MAX_PAGES = 100
MAX_TOOLS = 1_000

logger = logging.getLogger(__name__)


class Session:
    """A session that begins at once. `is_open` until it broke, was retired or ended; from then on `left` is set.

    `why` is the reason at the end. `on_list` is called when the server has changed its `tools`.
    """

    def __init__(
        self, server: Server, max_message_bytes: int, walls: ServerWalls, on_list: Callable[["Session"], None]
    ) -> None:
        self.server = server
        self.tools: Mapping[str, Tool] = {}
        self.why = ""
        self.is_retired = False
        self.left = asyncio.Event()
        self._on_list = on_list
        self._calls = 0
        self._end = asyncio.Event()
        self._changed = asyncio.Event()
        self._ready: asyncio.Future[Client | None] = asyncio.get_running_loop().create_future()
        self._transport = ServerProcess(server, max_message_bytes, walls) if server.command else Endpoint(server)
        self._serving = asyncio.create_task(self._serve(), name=f"mcp-{server.name}")

    @property
    def is_open(self) -> bool:
        return not (self.is_retired or self._end.is_set() or self._serving.done())

    async def begun(self) -> Client | None:
        """Wait until it has begun; None if it cannot."""
        return await asyncio.shield(self._ready)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call while it lasts."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._end_if_idle()

    def retire(self) -> None:
        """Accept no more calls; it ends with the last one in progress."""
        self.is_retired = True
        self.left.set()
        self._end_if_idle()

    async def ended(self, seconds: float | None = None) -> None:
        """Wait for its end."""
        await asyncio.wait({self._serving}, timeout=seconds)

    async def end(self, seconds: float) -> None:
        """End it, including its calls."""
        self._end.set()
        if not self._ready.done():
            self._serving.cancel()
        await self.ended(seconds)
        self._serving.cancel()
        await self.ended(seconds)

    def _end_if_idle(self) -> None:
        if self.is_retired and not self._calls:
            self._end.set()

    async def _serve(self) -> None:
        ours = Implementation(name="forge-tools", version=__version__)
        client = Client(self._transport.connect(), client_info=ours, message_handler=self._hear, cache=None)
        try:
            async with asyncio.timeout(self.server.start_timeout) as starting, client:
                self.tools = await self._listed(client)
                starting.reschedule(None)
                facts = {"server": self.server.name, "tools": len(self.tools)}
                logger.info("Connected to an MCP server", extra=facts)
                self._ready.set_result(client)
                await self._until_over(client)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  a foreign server may make the SDK raise anything
            self.why = self._reason(error)
        else:
            self.why = self._transport.account()
        finally:
            self.why = Scrubber(self.server.secrets).text(self.why)
            self._end.set()
            self.left.set()
            if not self._ready.done():
                self._ready.set_result(None)

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    async def _until_over(self, client: Client) -> None:
        ends = [asyncio.create_task(event.wait()) for event in (self._end, self._transport.over)]
        tasks = [*ends, asyncio.create_task(self._follow(client)), asyncio.create_task(self._subscribe(client))]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._end.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _subscribe(self, client: Client) -> None:
        """Subscribe to changes of the tools if the protocol requires it."""
        offered = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (offered and offered.list_changed):
            return
        with suppress(MCPError, SubscriptionLost, TimeoutError):
            async with client.listen(tools_list_changed=True) as news:
                async for _ in news:
                    self._changed.set()

    async def _follow(self, client: Client) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                tools = await self._listed(client)
            except MCPError as error:
                facts = {"server": self.server.name, "reason": clean_text(error.message)}
                logger.warning("An MCP server does not list its tools", extra=facts)
                continue
            if tools != self.tools:
                came, went = sorted(tools.keys() - self.tools.keys()), sorted(self.tools.keys() - tools.keys())
                news = {"server": self.server.name, "came": came, "went": went}
                logger.info("The tools of an MCP server changed", extra=news)
                self.tools = tools
                self._on_list(self)

    async def _listed(self, client: Client) -> dict[str, Tool]:
        """Read every page of the list."""
        tools: dict[str, Tool] = {}
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            for tool in page.tools:
                tools.setdefault(tool.name, tool)
            cursor = page.next_cursor
            if not cursor or not page.tools or len(tools) >= MAX_TOOLS:
                break
        if cursor:
            facts = {"server": self.server.name, "tools": len(tools)}
            logger.warning("The list of an MCP server's tools does not end; the rest is ignored", extra=facts)
        return dict(list(tools.items())[:MAX_TOOLS])

    def _reason(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        transport, server = self._transport, self.server
        if isinstance(error, TimeoutError):
            return f"it did not answer within {server.start_timeout:g}s{transport.last_words()}"
        if transport.broke or isinstance(error, asyncio.CancelledError):
            return transport.account()
        if isinstance(error, ConfigurationError):
            return error.message.removesuffix(".")
        if isinstance(error, OSError):
            return f"{error.filename or server.command or without_passwords(server.url)}: {error.strerror or error}"
        kind = type(error).__name__
        said = error.message if isinstance(error, MCPError) else f"{kind}: {error}" if str(error) else kind
        return f"{clean_text(said)[:500]}{transport.last_words()}"


class Endpoint:
    """The transport to a URL, with the configured headers. `over` is never set: each request reports its own failure."""

    broke = False

    def __init__(self, server: Server) -> None:
        self._server = server
        self._refusal = ""
        self.over = asyncio.Event()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """Give the SDK its streams."""
        async with create_mcp_http_client(headers=dict(self._server.headers)) as http:
            http.event_hooks = {"response": [self._note]}
            async with streamable_http_client(self._server.url, http_client=http) as streams:
                yield streams

    def account(self) -> str:
        """Return the known reasons why it cannot be used."""
        return f"the connection broke{self.last_words()}"

    def last_words(self) -> str:
        """Return the last refusal, to append to a sentence about it."""
        return f"; {self._refusal}" if self._refusal else ""

    async def _note(self, response: Any) -> None:
        if response.status_code >= 400:
            self._refusal = f"its last refusal was HTTP {response.status_code} {response.reason_phrase}".rstrip()
