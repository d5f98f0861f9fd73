"""`tools/call`: runs a tool for a client, tells it of progress, and cancels what it no longer waits for."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolRequestParams

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.errors import ForgeError
from forge_tools.mcp.offer import Caller, Offer
from forge_tools.mcp.progress import LAST_WORDS, tell_progress, told_here, wants_progress
from forge_tools.records import ExecutionContext, ToolResult, ToolSpec, told_of
from forge_tools.validation import shown, suggestion

END_PATIENCE = 3.0
"""Seconds that cancelling calls may take when the server ends."""

Context = ServerRequestContext[Any, Any]

logger = logging.getLogger(__name__)


class Tools(Protocol):
    """What is asked of an executor here: a ToolExecutor, an ExecutorClient and a ToolThread are each one."""

    async def call(self, name: str, arguments: Mapping[str, Any], context: ExecutionContext, /) -> ToolResult:
        """Call a tool; whatever is wrong with the call, or goes wrong in it, is a failed result."""
        ...

    def specs(self) -> list[ToolSpec]:
        """The tools as data, without I/O."""
        ...


class Calls:
    """Calls of clients: on workers where the executor is a client of them, else in this process."""

    def __init__(self, executor: Tools, offer: Offer) -> None:
        self._executor = executor
        self._offer = offer
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def workers(self) -> ExecutorClient | None:
        """The client of workers, if calls are run there."""
        return self._executor if isinstance(self._executor, ExecutorClient) else None

    def offered(self) -> list[ToolSpec]:
        """The tools that clients see, by name."""
        return sorted(filter(self._offer.admits, self._executor.specs()), key=lambda spec: spec.name)

    async def refresh(self) -> None:
        """Read the catalogue again."""
        if self.workers is not None:
            await self.workers.catalogue.refresh()

    async def find(self, name: str) -> ToolSpec:
        """The offered tool of that name or alias; it may have come since the catalogue was read.

        Raises:
            MCPError: there is none.
        """
        spec = self._known(name)
        if spec is None and self.workers is not None:
            await self.refresh()
            spec = self._known(name)
        if spec is None:
            hint = suggestion(name, [one.name for one in self.offered()])
            told = told_of(name, self.workers.catalogue.servers()) if self.workers is not None else ""
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {shown(name)}{hint}{told}")
        return spec

    async def run(self, ctx: Context, params: CallToolRequestParams, caller: Caller) -> ToolResult:
        """Call a tool and wait for it; cancelling this cancels the call."""
        spec = await self.find(params.name)
        arguments, context = params.arguments or {}, self._offer.context(caller)
        client = self.workers
        if not wants_progress(ctx):
            return await self._executor.call(spec.name, arguments, context)
        if client is None:
            return await told_here(ctx, lambda: self._executor.call(spec.name, arguments, context))
        handle = await submit(client, Call(spec.name, arguments, context))
        if isinstance(handle, ToolResult):
            return handle
        await self.is_over(ctx, handle)
        return await handle.result()

    async def is_over(self, ctx: Context, handle: Handle, patience: float | None = None) -> bool:
        """Wait for the end of a call, at most `patience` seconds, and report progress meanwhile.

        Cancelling this cancels the call.
        """
        waiting = asyncio.ensure_future(handle.result())
        telling = asyncio.ensure_future(tell_progress(ctx, handle, waiting)) if wants_progress(ctx) else None
        try:
            await asyncio.wait([waiting], timeout=patience)
            if telling is not None and waiting.done():
                await asyncio.wait([telling], timeout=LAST_WORDS)
        except asyncio.CancelledError:
            self.later(handle.cancel("the MCP client cancelled it or left"))
            raise
        finally:
            is_over = waiting.done()
            for task in filter(None, (waiting, telling)):
                task.cancel()
        return is_over

    def later(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that outlives the request which asked for it, since what cancels that cancels its every wait."""
        task = asyncio.ensure_future(_logged(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def settle(self) -> None:
        """Wait for what was left for later, but not for a database that is away."""
        if self._background:
            await asyncio.wait(self._background, timeout=END_PATIENCE)

    def _known(self, name: str) -> ToolSpec | None:
        named = (spec for spec in self._executor.specs() if name == spec.name or name in spec.aliases)
        return next(filter(self._offer.admits, named), None)


async def submit(client: ExecutorClient, call: Call) -> Handle | ToolResult:
    """Submit a call to workers; a failed result says why it was not taken."""
    try:
        return await client.calls.submit(call)
    except ForgeError as error:
        return ToolResult.fail(error.message, error_code=error.code)


async def _logged(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except ForgeError as error:
        logger.warning("A call could not be cancelled", extra={"error": str(error)})
