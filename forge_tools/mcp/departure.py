"""What happens when a client's HTTP connection ends before its answer: its call is cancelled."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_KEY = "forge_tools.gone"


class Departures:
    """Notes in each request that its client has hung up; streams are not resumable here, so nobody can fetch the answer."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        gone = scope[_KEY] = asyncio.Event()

        async def watched() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                gone.set()
            return message

        await self._app(scope, watched, send)


async def cancel_when_gone(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Cancel a call of a tool when its client hangs up."""
    gone = ctx.request.scope.get(_KEY) if ctx.request is not None and ctx.method == "tools/call" else None
    if gone is None:
        return await call_next(ctx)
    with anyio.CancelScope() as scope:
        watching = asyncio.ensure_future(_cancel(scope, gone))
        try:
            return await call_next(ctx)
        finally:
            watching.cancel()
    raise MCPError(code=CONNECTION_CLOSED, message="The client has left")


async def _cancel(scope: anyio.CancelScope, gone: asyncio.Event) -> None:
    await gone.wait()
    scope.cancel()
