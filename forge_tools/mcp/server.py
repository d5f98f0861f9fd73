"""The server: our tools behind the official SDK's protocol, run on workers or in this process."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol

import anyio
from mcp import types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from forge_tools import __version__
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.errors import ForgeError, first_problem
from forge_tools.mcp.calls import END_PATIENCE, Calls, Context, Offer, Tools, connection_of, invalid, set_log_level
from forge_tools.mcp.content import ArtifactReader, Resources, listed, shown_whole
from forge_tools.mcp.tasks import CORE_VERSION, EXTENSION, BackgroundTools, Tasks, takes_tasks
from forge_tools.mcp.thread import ToolThread
from forge_tools.tool.executor import ToolExecutor

logger = logging.getLogger(__name__)

PAGE = 100
"""Tools on one page of `tools/list`."""

PATIENCE = 2.0
"""How many seconds to wait for a client that does not read."""

_TASKS = types.ServerTasksCapability.model_validate({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}})


class ToolServer(Server[None]):
    """Serves the tools of an executor: one of workers, which must be open, or one in this process.

    One server serves any number of connections, over any transport. With `artifacts`, clients may read what was too
    long for a result.
    """

    def __init__(self, executor: Tools, offer: Offer | None = None, artifacts: ArtifactReader | None = None) -> None:
        offer = offer or Offer()
        self.calls = Calls(executor, offer)
        self.listeners = Listeners()
        self.subscriptions = ListenHandler(self.listeners)
        super().__init__(
            "forge-tools",
            version=__version__,
            title="forge_tools",
            lifespan=self._life,
            get_tool_input_schema=self.calls.routing_schema,
            on_list_tools=self._list_tools,
            on_subscriptions_listen=self.subscriptions,
        )
        self.add_request_handler("tools/call", types.CallToolRequestParams, self._call_tool)
        self.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_log_level)
        self.add_notification_handler("notifications/initialized", types.NotificationParams, self._join)
        self.middleware.append(_told)
        client = self.calls.workers
        self._tasks = Tasks(self.calls, client) if client else None
        self._background = BackgroundTools(self.calls, client) if client and offer.background_tools else None
        if self._tasks is not None:
            self.extensions[EXTENSION] = {}
            self.middleware.append(self._tasks.create)
            self.add_request_handler("tasks/get", types.GetTaskRequestParams, self._tasks.get)
            self.add_request_handler("tasks/result", types.GetTaskRequestParams, self._tasks.result)
            self.add_request_handler("tasks/cancel", types.GetTaskRequestParams, self._tasks.cancel)
            self.add_request_handler("tasks/update", types.GetTaskRequestParams, self._tasks.update)
            self.add_request_handler("tasks/list", types.PaginatedRequestParams, self._tasks.list)
        if artifacts is not None:
            resources = Resources(artifacts, self.calls)
            self.add_request_handler("resources/list", types.PaginatedRequestParams, resources.list)
            self.add_request_handler("resources/templates/list", types.PaginatedRequestParams, resources.templates)
            self.add_request_handler("resources/read", types.ReadResourceRequestParams, resources.read)
            self.add_request_handler("completion/complete", types.CompleteRequestParams, resources.complete)

    def get_capabilities(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
        *,
        protocol_version: str | None = None,
    ) -> types.ServerCapabilities:
        """Return the capabilities of this server; the SDK itself supports neither tasks nor changing tools."""
        changing = NotificationOptions(tools_changed=True)
        told = super().get_capabilities(
            changing, experimental_capabilities, extensions, protocol_version=protocol_version
        )
        if protocol_version in MODERN_PROTOCOL_VERSIONS or self._tasks is None:
            return told
        # Until 2025-11-25 tasks were part of the protocol, and there were no extensions.
        return told.model_copy(update={"tasks": _TASKS, "extensions": None})

    @asynccontextmanager
    async def _life(self, _server: Server[None]) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(self._watch())
        if missing := self.calls.missing():
            logger.warning("Tools that are to be offered do not exist so far", extra={"names": missing})
        try:
            yield
        finally:
            watching.cancel()
            (ended,) = await asyncio.gather(watching, return_exceptions=True)
            if not isinstance(ended, asyncio.CancelledError):
                logger.error("Changes of the catalogue are no longer sent to clients", exc_info=ended)
            await self.calls.settle()

    async def _watch(self) -> None:
        """While a client is connected, check for changes and announce them; retry later if the database is away."""
        known = self._fingerprint()
        while True:
            await asyncio.sleep(self.calls.offer.refresh_interval)
            if not self.listeners.are_present:
                continue
            try:
                await self.calls.refresh()
            except ForgeError as error:
                logger.warning("The catalogue cannot be read", extra={"error": str(error)})
                continue
            if (found := self._fingerprint()) != known:
                known = found
                await self.listeners.tell()

    def _fingerprint(self) -> object:
        return tuple((spec.name, spec.digest) for spec in self.calls.offered())

    async def _join(self, ctx: Context, _params: types.NotificationParams) -> None:
        self.listeners.join(ctx.session, connection_of(ctx).exit_stack)

    async def _list_tools(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        as_task = self._tasks is not None and ctx.protocol_version == CORE_VERSION
        mine = self._background.tools if self._background else ()
        taken = {tool.name for tool in mine}
        tools = [*mine, *(listed(spec, as_task=as_task) for spec in self.calls.offered() if spec.name not in taken)]
        start = _position(params.cursor if params else None)
        end = start + PAGE
        return types.ListToolsResult(tools=tools[start:end], next_cursor=str(end) if end < len(tools) else None)

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> HandlerResult:
        if self._background is not None:
            answer = await self._background.call(params.name, params.arguments or {}, ctx)
            if answer is not None:
                return answer
        if self._tasks is not None and takes_tasks(ctx):
            return await self._tasks.call(ctx, params)
        result = await self.calls.run(ctx, params)
        return await shown_whole(result, is_structured=self.calls.is_structured(params.name))


class Listeners(InMemorySubscriptionBus):
    """Clients that are notified of changes: sessions of protocols with a handshake, and streams of those without."""

    def __init__(self) -> None:
        super().__init__()
        self._sessions: dict[object, ServerSession] = {}

    def join(self, session: ServerSession, until: AsyncExitStack) -> None:
        """Notify that session of changes until its connection ends."""
        token = object()
        self._sessions[token] = session
        until.callback(self._sessions.pop, token)

    @property
    def are_present(self) -> bool:
        return bool(self._sessions or self._listeners)

    async def tell(self) -> None:
        await self.publish(ToolsListChanged())
        for session in list(self._sessions.values()):
            with anyio.move_on_after(PATIENCE):
                await session.send_notification(types.ToolListChangedNotification())


class Transport(Protocol):
    async def serve(self, server: ToolServer) -> None: ...


def serve_workers(transport: Transport, settings: Settings, offer: Offer) -> None:
    """Serve the tools of the catalogue, run on workers."""

    async def serve() -> None:
        client = ExecutorClient(settings)
        await client.open()
        try:
            await transport.serve(ToolServer(client, offer, client.history.artifacts))
        finally:
            with suppress(TimeoutError):  # an unavailable database must not keep this process from ending
                await asyncio.wait_for(client.close(), END_PATIENCE)

    asyncio.run(serve())


def serve_here(transport: Transport, executor: ToolExecutor, offer: Offer, artifacts: ArtifactReader) -> None:
    """Serve the tools of an executor, run in this process, and its stored outputs."""
    with ToolThread(executor) as tools:
        asyncio.run(transport.serve(ToolServer(tools, offer, artifacts)))


async def _told(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Turn errors here into errors of the protocol: for example, without a database nothing is known about a task."""
    try:
        return await call_next(ctx)
    except ForgeError as error:
        details = {"code": str(error.code), "retryable": error.retryable}
        raise MCPError(code=types.INTERNAL_ERROR, message=error.message, data=details) from error
    except ValidationError as error:  # the SDK would not say which parameter
        raise invalid(f"Invalid request parameters: {first_problem(error)}") from error


def _position(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if cursor.isdecimal() and len(cursor) < 10:
        return int(cursor)
    raise invalid("Unknown cursor; list from the start, without one")
