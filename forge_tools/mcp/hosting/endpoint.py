"""A server that is reached by URL: streamable HTTP with the headers that were configured."""

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from forge_tools.mcp.hosting.configuration import Server


class Endpoint:
    """The transport to a URL: `async with` gives the SDK its streams. `over` is never set: each request tells by itself."""

    broke = False

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stack = AsyncExitStack()
        self._refusal = ""
        self.over = asyncio.Event()

    async def __aenter__(self) -> Any:
        http = create_mcp_http_client(headers=dict(self._server.headers))
        http.event_hooks = {"response": [self._note]}
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(http)
            streams = await stack.enter_async_context(streamable_http_client(self._server.url, http_client=http))
            self._stack = stack.pop_all()
        return streams

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    def account(self) -> str:
        """What is known of why it cannot be used."""
        return f"the connection broke{self.last_words()}"

    def last_words(self) -> str:
        """The last refusal, to be put behind a sentence about it."""
        return f"; {self._refusal}" if self._refusal else ""

    async def _note(self, response: Any) -> None:
        if response.status_code >= 400:
            self._refusal = f"its last refusal was HTTP {response.status_code} {response.reason_phrase}".rstrip()
