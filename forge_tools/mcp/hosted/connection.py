"""The connection to one server: a session, and another whenever that breaks, with back-off and without end."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Literal

from mcp import Client, types
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from forge_tools import __version__
from forge_tools.errors import ConfigurationError, ForgeError, first_problem
from forge_tools.mcp.hosted.configuration import Server, ServerWalls
from forge_tools.mcp.hosted.process import ServerProcess
from forge_tools.mcp.thread import StoppedError
from forge_tools.schema import clean_text
from forge_tools.secrets.scrubber import Scrubber
from forge_tools.urls import without_passwords

DISCONNECTED = "MCP_DISCONNECTED"

STABLE_SECONDS = 60.0
"""A session that lasted this long causes no suspicion when it breaks."""

MAX_PAGES = 100
MAX_TOOLS = 1_000

LIST_SECONDS = 1.0
"""The shortest time between two lists of a server that changes its tools."""

FIRST_DELAY = 0.5
MAX_DELAY = 30.0
PATIENCE = 1.0
"""Seconds that a call waits for the next attempt; if that is further off it fails at once."""

_FORGOTTEN = "Session terminated"  # the SDK's message for HTTP status 404 within a session
_CLOSED = (types.CONNECTION_CLOSED, "Connection closed")  # the SDK's own words; servers have other uses for the code
_END_SECONDS = 10.0

logger = logging.getLogger(__name__)


class DisconnectedError(ForgeError):
    """A server is unavailable. `had_begun` says whether it may have begun the request."""

    code = DISCONNECTED
    retryable = True

    def __init__(self, message: str, *, had_begun: bool = False) -> None:
        super().__init__(message)
        self.had_begun = had_begun


class GoneError(ForgeError):
    """A server has removed the tool since it was offered."""

    code = "MCP_TOOL_GONE"


class Connection:
    """One server, for any number of concurrent calls, while `supervise` runs. It lives on one event loop.

    `tools` are those it listed last, `status` is its state `since` a time; if it fails, `why` is the reason and
    `failures` the number in a row. `on_change` is called whenever one of them changes.
    """

    def __init__(
        self, server: Server, on_change: Callable[[], None], *, max_message_bytes: int, walls: ServerWalls
    ) -> None:
        self.server = server
        self.walls = walls
        self._on_change = on_change
        self.tools: Mapping[str, types.Tool] = {}
        self.status: Literal["starting", "serving", "failing"] = "starting"
        self.since = datetime.now(UTC)
        self.why = ""
        self.failures = 0
        self.was_tried = asyncio.Event()
        self._max_message_bytes = max_message_bytes
        self._session: Session | None = None
        self._failed_starts = 0
        self._not_before = 0.0
        self._is_over = False
        self._news = asyncio.Event()

    async def supervise(self, starts: asyncio.Semaphore) -> None:
        """Keep a session for ever: start the next when one ends, backing off after failures; `starts` limits concurrency."""
        session: Session | None = None
        try:
            while True:
                async with starts:
                    began = time.monotonic()
                    session = Session(self.server, self._max_message_bytes, self.walls, self._list)
                    # A cancel must not reach the future: `end` asks it whether the session is still starting.
                    has_begun = await asyncio.shield(session.ready)
                if has_begun:
                    self._serve(session)
                    await session.left.wait()
                    if session.is_retired:
                        continue
                await session.ended()  # then the reason is known
                self._fail(session, time.monotonic() - began if has_begun else None)
                await asyncio.sleep(self._not_before - time.monotonic())
        finally:
            self._is_over = True
            self._news.set()
            if session is not None:
                await session.end()

    async def call(self, name: str, arguments: Mapping[str, Any], on_progress: ProgressFnT) -> types.CallToolResult:
        """Call a tool; cancelling this notifies the server. `on_progress` receives the server's progress meanwhile.

        Raises:
            DisconnectedError: there is no connection, or it broke during the call.
            GoneError: the server has no such tool any more.
            MCPError: what the server answers instead of a result.
            StoppedError: `supervise` is over.
        """
        session = await self._open()
        try:
            return await self._asked(session, name, arguments, on_progress)
        except MCPError as error:
            if error.message != _FORGOTTEN:
                raise
        session.retire()  # the server has forgotten us, and so has done nothing: reconnect
        return await self._asked(await self._open(), name, arguments, on_progress)

    async def _open(self) -> "Session":
        """Return the current session, or the next one if it is about to begin: all callers wait for the same one."""
        failed_starts = self._failed_starts
        while (session := self._session) is None or not session.is_open:
            if self._is_over:
                raise StoppedError
            if self._failed_starts > failed_starts:
                raise DisconnectedError(f"The MCP server '{self.server.name}' cannot be used: {self.why}.")
            left = self._not_before - time.monotonic()
            if left > PATIENCE:
                raise DisconnectedError(
                    f"The MCP server '{self.server.name}' is not available: {self.why}. The next attempt is in {left:.0f}s."
                )
            await self._news.wait()
        return session

    async def _asked(
        self, session: "Session", name: str, arguments: Mapping[str, Any], on_progress: ProgressFnT
    ) -> types.CallToolResult:
        if name not in session.tools:
            has = ", ".join(sorted(session.tools)) or "none"
            raise GoneError(f"The MCP server '{self.server.name}' no longer has a tool '{name}'. It has: {has[:500]}.")
        try:
            return await session.call(name, arguments, on_progress)
        except MCPError as error:
            if (error.code, error.message) != _CLOSED:
                raise
            await session.end()  # then the reason is known
            raise DisconnectedError(
                f"The MCP server '{self.server.name}' was lost during the call: {session.why}. "
                "Whether the call took effect is unknown.",
                had_begun=True,
            ) from error

    def _serve(self, session: "Session") -> None:
        self._session = session
        if self.status != "serving":
            self.status, self.since, self.why = "serving", datetime.now(UTC), ""
        self._list(session)

    def _list(self, session: "Session") -> None:
        if session is self._session:
            self.tools = session.tools
            self._tell()

    def _fail(self, session: "Session", lasted: float | None) -> None:
        """Record that a session is over; `lasted` None means that it never began."""
        had_begun = lasted is not None
        self._failed_starts += not had_begun
        self.failures = 1 if lasted is not None and lasted > STABLE_SECONDS else self.failures + 1
        steps = self.failures - (2 if had_begun else 1)  # the first retry after a good start is immediate
        delay = min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(steps, 20)) if steps >= 0 else 0.0
        self._not_before = time.monotonic() + delay * random.uniform(0.8, 1.2)  # noqa: S311  spreads load, hides nothing
        if session.why != self.why:
            logger.warning("An MCP server is gone", extra={"server": self.server.name, "reason": session.why})
        if self.status != "failing":
            self.status, self.since = "failing", datetime.now(UTC)
        self.why = session.why
        self._tell()

    def _tell(self) -> None:
        """Wake the calls that wait for a session, and report changes."""
        self.was_tried.set()
        self._news.set()
        self._news = asyncio.Event()  # the old one wakes only those who waited until now
        self._on_change()


class Session:
    """A session that begins at once. `is_open` until it broke, was retired or ended; from then on `left` is set.

    `ready` tells whether it has begun, `why` what ended it. `on_list` is called when the server has changed its `tools`.
    """

    def __init__(
        self, server: Server, max_message_bytes: int, walls: ServerWalls, on_list: Callable[["Session"], None]
    ) -> None:
        self.server = server
        self.tools: Mapping[str, types.Tool] = {}
        self.why = ""
        self.is_retired = False
        self.left = asyncio.Event()
        self._on_list = on_list
        self._calls = 0
        self._end = asyncio.Event()
        self._changed = asyncio.Event()
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        limit = max_message_bytes
        self._transport = ServerProcess(server, limit, walls) if server.command else Endpoint(server, limit)
        ours = types.Implementation(name="forge-tools", version=__version__)
        # No cache: when a server announces a change, its list has to be read.
        self._client = Client(self._transport.connect(), client_info=ours, message_handler=self._hear, cache=None)
        self._serving = asyncio.create_task(self._serve(), name=f"mcp-{server.name}")

    @property
    def is_open(self) -> bool:
        return not (self.is_retired or self._end.is_set())

    async def call(self, name: str, arguments: Mapping[str, Any], on_progress: ProgressFnT) -> types.CallToolResult:
        self._calls += 1
        try:
            return await self._client.call_tool(name, dict(arguments), progress_callback=on_progress)
        finally:
            self._calls -= 1
            self._end_if_idle()

    def retire(self) -> None:
        """Accept no more calls; it ends with the last one in progress."""
        self.is_retired = True
        self.left.set()
        self._end_if_idle()

    async def ended(self) -> None:
        await asyncio.wait({self._serving})

    async def end(self) -> None:
        """End it, including its calls."""
        self._end.set()
        if not self.ready.done():
            self._serving.cancel()
        await asyncio.wait({self._serving}, timeout=_END_SECONDS)  # it takes leave of the server
        self._serving.cancel()
        await asyncio.wait({self._serving}, timeout=_END_SECONDS)

    def _end_if_idle(self) -> None:
        if self.is_retired and not self._calls:
            self._end.set()

    async def _serve(self) -> None:
        try:
            async with asyncio.timeout(self.server.start_timeout) as starting, self._client:
                self.tools = await self._listed()
                starting.reschedule(None)
                facts = {"server": self.server.name, "tools": len(self.tools)}
                logger.info("Connected to an MCP server", extra=facts)
                self.ready.set_result(True)
                await self._until_over()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  a foreign server may make the SDK raise anything
            self.why = self._reason(error)
        else:
            self.why = self._transport.account()
        finally:
            self.why = Scrubber(self.server.secrets).text(self.why)
            self._end.set()
            self.left.set()
            if not self.ready.done():
                self.ready.set_result(False)

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()

    async def _until_over(self) -> None:
        ends = [asyncio.create_task(event.wait()) for event in (self._end, self._transport.over)]
        tasks = [*ends, asyncio.create_task(self._follow()), asyncio.create_task(self._subscribe())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._end.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _subscribe(self) -> None:
        client = self._client
        offered = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (offered and offered.list_changed):
            return
        with suppress(MCPError, SubscriptionLost, TimeoutError):
            async with client.listen(tools_list_changed=True) as news:
                async for _ in news:
                    self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                tools = await self._listed()
            except (MCPError, ValidationError) as error:
                facts = {"server": self.server.name, "reason": _said(error)}
                logger.warning("An MCP server does not list its tools", extra=facts)
            else:
                if tools != self.tools:
                    logger.info("The tools of an MCP server changed", extra={"server": self.server.name})
                    self.tools = tools
                    self._on_list(self)
            await asyncio.sleep(LIST_SECONDS)

    async def _listed(self) -> dict[str, types.Tool]:
        tools: dict[str, types.Tool] = {}
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
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
        return f"{_said(error)}{transport.last_words()}"


def _said(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        said = f"its answer is invalid: {first_problem(error)}"
    else:
        kind = type(error).__name__
        said = error.message if isinstance(error, MCPError) else f"{kind}: {error}" if str(error) else kind
    return clean_text(said)[:500]


class Endpoint:
    """The transport to a URL, with the configured headers. `over` is never set: each request reports its own failure."""

    broke = False

    def __init__(self, server: Server, max_message_bytes: int) -> None:
        self._server = server
        self._max_message_bytes = max_message_bytes
        self._refusal = ""
        self.over = asyncio.Event()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        async with create_mcp_http_client(headers=dict(self._server.headers)) as http:
            http.event_hooks = {"response": [self._note]}
            url, limit = self._server.url, self._max_message_bytes
            async with streamable_http_client(url, http_client=http, max_sse_event_size=limit) as streams:
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
