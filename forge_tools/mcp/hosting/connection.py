"""The connection to one server: made when it is first needed, made again after it broke, never in anybody else's way."""

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from typing import Any

from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED, CallToolResult, Tool

from forge_tools.errors import ForgeError
from forge_tools.mcp.hosting.configuration import Server
from forge_tools.mcp.hosting.results import DISCONNECTED, TOOL_GONE
from forge_tools.mcp.hosting.session import Session

STABLE_SECONDS = 60.0
"""A session that lasted this long is no sign of trouble when it breaks."""

FIRST_DELAY = 0.5
MAX_DELAY = 30.0
PATIENCE = 1.0
"""Seconds that a call waits for the next try; where it is further off it fails at once."""

_FORGOTTEN = "Session terminated"  # how the SDK tells HTTP status 404 inside a session
_CLOSED = (CONNECTION_CLOSED, "Connection closed")  # the SDK's own words; servers have other uses for the code
_END_SECONDS = 10.0

logger = logging.getLogger(__name__)


class DisconnectedError(ForgeError):
    """A server is not there. `had_begun` says whether it may have begun what it was asked."""

    code = DISCONNECTED
    retryable = True

    def __init__(self, message: str, *, had_begun: bool = False) -> None:
        super().__init__(message)
        self.had_begun = had_begun


class GoneError(ForgeError):
    """A server has taken the tool away since it was offered."""

    code = TOOL_GONE


class Connection:
    """One server, for as many calls at once as there are. It lives on one event loop."""

    def __init__(self, server: Server, *, max_message_bytes: int) -> None:
        self.server = server
        self._max_message_bytes = max_message_bytes
        self._session: Session | None = None
        self._began = 0.0
        self._failures = 0
        self._not_before = 0.0
        self._is_closed = False

    async def list_tools(self) -> list[Tool]:
        """Connect, if need be, and return the tools that the server has.

        Raises:
            DisconnectedError: saying why there is no connection, and when the next try is.
        """
        return list((await self._open()).tools.values())

    async def call(
        self, name: str, arguments: Mapping[str, Any], on_progress: ProgressFnT | None = None
    ) -> CallToolResult:
        """Call a tool; cancelling this tells the server so. `on_progress` is told what the server tells meanwhile.

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
        session.retire()  # the server has forgotten us, and so has done nothing: introduce ourselves again
        return await self._asked(await self._open(), name, arguments, on_progress)

    async def close(self) -> None:
        """Let go of the server, and end it where we started it."""
        self._is_closed = True
        if self._session is not None:
            await self._session.end(_END_SECONDS)

    async def _open(self) -> Session:
        """Return a session that has begun: all who wait, wait for one and the same."""
        while (session := self._session) is None or not session.is_open:
            if session is not None and not session.is_retired:
                await session.ended()  # then it is known why, and when to try again
            if session is self._session:
                await self._have_patience()
            if session is self._session:
                self._begin()
        if await session.begun() is None:
            raise DisconnectedError(f"The MCP server '{self.server.name}' cannot be used: {session.why}.")
        return session

    def _begin(self) -> None:
        if self._is_closed:
            raise DisconnectedError(f"The MCP server '{self.server.name}' was let go: its worker is stopping.")
        self._began = time.monotonic()
        self._session = Session(self.server, self._max_message_bytes, self._note_end)

    async def _have_patience(self) -> None:
        left = self._not_before - time.monotonic()
        if left > PATIENCE and self._session is not None:
            why = self._session.why
            raise DisconnectedError(
                f"The MCP server '{self.server.name}' is not there: {why}. The next try is in {left:.0f}s."
            )
        if left > 0:
            await asyncio.sleep(left)

    async def _asked(
        self, session: Session, name: str, arguments: Mapping[str, Any], on_progress: ProgressFnT | None
    ) -> CallToolResult:
        if name not in session.tools:
            has = ", ".join(sorted(session.tools)) or "none"
            raise GoneError(f"The MCP server '{self.server.name}' has no tool '{name}' any more. It has: {has[:500]}.")
        client = await session.begun()
        assert client is not None  # noqa: S101  for the type checker: it has tools
        try:
            with session.calling():
                return await client.call_tool(name, dict(arguments), progress_callback=on_progress)
        except MCPError as error:
            if (error.code, error.message) == _CLOSED:
                raise await self._broken(session) from error
            raise

    async def _broken(self, session: Session) -> DisconnectedError:
        await session.end(_END_SECONDS)  # then it is known why
        return DisconnectedError(
            f"The MCP server '{self.server.name}' was lost during the call: {session.why}. "
            "Whether the call took effect is unknown.",
            had_begun=True,
        )

    def _note_end(self, session: Session, had_begun: bool) -> None:
        if self._is_closed or session.is_retired:
            return
        lasted = time.monotonic() - self._began
        self._failures = 1 if had_begun and lasted > STABLE_SECONDS else self._failures + 1
        steps = self._failures - (2 if had_begun else 1)  # the first time after a good start costs no wait
        delay = min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(steps, 20)) if steps >= 0 else 0.0
        self._not_before = time.monotonic() + delay * random.uniform(0.8, 1.2)  # noqa: S311  spreads load, hides nothing
        logger.warning("An MCP server is gone", extra={"server": self.server.name, "reason": session.why})
