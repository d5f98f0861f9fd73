"""The connection to one server: made at once, and again whenever it breaks, with back-off and without end."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED, CallToolResult, Tool

from forge_tools.errors import ForgeError
from forge_tools.mcp.hosted.configuration import Server
from forge_tools.mcp.hosted.session import Session
from forge_tools.mcp.hosted.walls import ServerWalls

DISCONNECTED = "MCP_DISCONNECTED"
TOOL_GONE = "MCP_TOOL_GONE"

STABLE_SECONDS = 60.0
"""A session that lasted this long causes no suspicion when it breaks."""

FIRST_DELAY = 0.5
MAX_DELAY = 30.0
PATIENCE = 1.0
"""Seconds that a call waits for the next attempt; if that is further off it fails at once."""

_FORGOTTEN = "Session terminated"  # the SDK's message for HTTP status 404 within a session
_CLOSED = (CONNECTION_CLOSED, "Connection closed")  # the SDK's own words; servers have other uses for the code
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

    code = TOOL_GONE


class Connection:
    """One server, for any number of concurrent calls, while `supervise` runs. It lives on one event loop.

    `tools` are those it listed last, `status` is its state `since` a time; if it fails, `why` is the reason and
    `failures` the number in a row. `on_change` is called whenever one of them changes.
    """

    def __init__(
        self,
        server: Server,
        *,
        max_message_bytes: int,
        walls: ServerWalls | None = None,
        on_change: "Callable[[Connection], None]" = lambda _: None,
    ) -> None:
        self.server = server
        self.walls = walls or ServerWalls()
        self.tools: Mapping[str, Tool] = {}
        self.status: Literal["starting", "serving", "failing"] = "starting"
        self.since = datetime.now(UTC)
        self.why = ""
        self.failures = 0
        self.was_tried = asyncio.Event()
        self._max_message_bytes = max_message_bytes
        self._on_change = on_change
        self._session: Session | None = None
        self._failed_starts = 0
        self._not_before = 0.0
        self._news = asyncio.Event()

    async def supervise(self, starts: asyncio.Semaphore) -> None:
        """Keep a session for ever: start the next when one ends, backing off after failures; `starts` limits concurrency."""
        session: Session | None = None
        try:
            while True:
                async with starts:
                    began = time.monotonic()
                    session = Session(self.server, self._max_message_bytes, self.walls, self._list)
                    has_begun = await session.begun() is not None
                if has_begun:
                    self._serve(session)
                    await session.left.wait()
                    if session.is_retired:
                        continue
                await session.ended()  # then the reason is known
                self._fail(session, time.monotonic() - began if has_begun else None)
                await asyncio.sleep(self._not_before - time.monotonic())
        finally:
            self._not_before = float("inf")
            if session is not None:
                await session.end(_END_SECONDS)

    async def call(
        self, name: str, arguments: Mapping[str, Any], on_progress: ProgressFnT | None = None
    ) -> CallToolResult:
        """Call a tool; cancelling this notifies the server. `on_progress` receives the server's progress meanwhile.

        Raises:
            DisconnectedError: there is no connection, or it broke during the call.
            GoneError: the server has no such tool any more.
            MCPError: what the server answers instead of a result.
        """
        session = await self._open()
        try:
            return await self._asked(session, name, arguments, on_progress)
        except MCPError as error:
            if error.message != _FORGOTTEN:
                raise
        session.retire()  # the server has forgotten us, and so has done nothing: reconnect
        return await self._asked(await self._open(), name, arguments, on_progress)

    async def _open(self) -> Session:
        """Return the current session, or the next one if it is about to begin: all callers wait for the same one."""
        failed_starts = self._failed_starts
        while (session := self._session) is None or not session.is_open:
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
        self, session: Session, name: str, arguments: Mapping[str, Any], on_progress: ProgressFnT | None
    ) -> CallToolResult:
        if name not in session.tools:
            has = ", ".join(sorted(session.tools)) or "none"
            raise GoneError(f"The MCP server '{self.server.name}' no longer has a tool '{name}'. It has: {has[:500]}.")
        client = await session.begun()
        assert client is not None  # noqa: S101  for the type checker: it has tools
        try:
            with session.call():
                return await client.call_tool(name, dict(arguments), progress_callback=on_progress)
        except MCPError as error:
            if (error.code, error.message) != _CLOSED:
                raise
            await session.end(_END_SECONDS)  # then the reason is known
            raise DisconnectedError(
                f"The MCP server '{self.server.name}' was lost during the call: {session.why}. "
                "Whether the call took effect is unknown.",
                had_begun=True,
            ) from error

    def _serve(self, session: Session) -> None:
        self._session = session
        if self.status != "serving":
            self.status, self.since, self.why = "serving", datetime.now(UTC), ""
        self._list(session)

    def _list(self, session: Session) -> None:
        if session is self._session:
            self.tools = session.tools
            self._tell()

    def _fail(self, session: Session, lasted: float | None) -> None:
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
        self._news = asyncio.Event()
        self._on_change(self)
