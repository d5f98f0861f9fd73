"""The server: our tools behind the official SDK's protocol."""

import asyncio
import base64
import binascii
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ServerCapabilities,
    ServerTasksCapability,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from forge_tools import __version__
from forge_tools.errors import ForgeError
from forge_tools.mcp.audience import Audience
from forge_tools.mcp.background import BackgroundTools
from forge_tools.mcp.calling import Calls, Context, Tools
from forge_tools.mcp.departure import cancel_when_gone
from forge_tools.mcp.identity import caller_of
from forge_tools.mcp.offer import Offer
from forge_tools.mcp.rendering import answered, listed
from forge_tools.mcp.resources import ArtifactReader, Resources
from forge_tools.mcp.tasks import CORE_VERSION, EXTENSION, Tasks, takes_tasks

logger = logging.getLogger(__name__)

PAGE = 100
"""Tools on one page of `tools/list`."""

_TASKS = ServerTasksCapability.model_validate({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}})


class ToolServer(Server[None]):
    """Serves the tools of an executor: one of workers, which must be open, or one in this process.

    The same server serves any number of connections, over whatever transport. With `artifacts`, clients may read what was too
    long for a result.
    """

    def __init__(self, executor: Tools, offer: Offer | None = None, artifacts: ArtifactReader | None = None) -> None:
        self.offer = offer or Offer()
        self.calls = Calls(executor, self.offer)
        self.audience = Audience()
        super().__init__(
            "forge-tools",
            version=__version__,
            title="forge_tools",
            lifespan=self._life,
            get_tool_input_schema=_nothing_in_headers,
            on_list_tools=self._list_tools,
            on_subscriptions_listen=ListenHandler(self.audience),
        )
        self.add_request_handler("tools/call", CallToolRequestParams, self._call_tool)
        self.add_notification_handler("notifications/initialized", NotificationParams, self._join)
        self.middleware += [_told, cancel_when_gone]
        client = self.calls.workers
        self._tasks = Tasks(self.calls, client, self.offer) if client else None
        self._background = (
            BackgroundTools(self.calls, client, self.offer) if client and offer and offer.background_tools else None
        )
        if self._tasks is not None:
            self._serve_tasks(self._tasks)
        if artifacts is not None:
            self._serve_resources(Resources(artifacts, self.offer))

    def get_capabilities(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
        *,
        protocol_version: str | None = None,
    ) -> ServerCapabilities:
        """What is told of this server; the SDK itself knows neither of tasks nor of tools that change."""
        told = super().get_capabilities(
            NotificationOptions(tools_changed=True),
            experimental_capabilities,
            extensions,
            protocol_version=protocol_version,
        )
        if protocol_version in MODERN_PROTOCOL_VERSIONS or self._tasks is None:
            return told
        return told.model_copy(update={"tasks": _TASKS, "extensions": None})

    def _serve_tasks(self, tasks: Tasks) -> None:
        self.extensions[EXTENSION] = {}
        self.middleware.append(tasks.create)
        for method, (params, handler) in tasks.handlers().items():
            self.add_request_handler(method, params, handler)

    def _serve_resources(self, resources: Resources) -> None:
        self.add_request_handler("resources/list", PaginatedRequestParams, resources.list)
        self.add_request_handler("resources/templates/list", PaginatedRequestParams, resources.templates)
        self.add_request_handler("resources/read", ReadResourceRequestParams, resources.read)

    @asynccontextmanager
    async def _life(self, _server: Server[None]) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(
            self.audience.watch(self._fingerprint, self.calls.refresh, self.offer.refresh_interval)
        )
        try:
            yield
        finally:
            watching.cancel()
            (ended,) = await asyncio.gather(watching, return_exceptions=True)
            if not isinstance(ended, asyncio.CancelledError):
                logger.error("Changes of the catalogue were no longer told", exc_info=ended)
            await self.calls.settle()

    def _fingerprint(self) -> object:
        return tuple((spec.name, spec.digest) for spec in self.calls.offered())

    async def _join(self, ctx: Context, _params: NotificationParams) -> None:
        connection = ctx.session._connection  # noqa: SLF001 the SDK gives it to nobody else, and it alone knows its end
        self.audience.join(ctx.session, connection.exit_stack)

    async def _list_tools(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        as_task = self._tasks is not None and ctx.protocol_version == CORE_VERSION
        mine = self._background.tools if self._background else []
        taken = {tool.name for tool in mine}
        tools = [*mine, *(listed(spec, as_task=as_task) for spec in self.calls.offered() if spec.name not in taken)]
        start = _position(params.cursor if params else None)
        end = start + PAGE
        return ListToolsResult(tools=tools[start:end], next_cursor=_cursor(end) if end < len(tools) else None)

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> HandlerResult:
        caller = caller_of(ctx, self.offer)
        if self._background is not None and (run := self._background.find(params.name)) is not None:
            return await run(params.arguments or {}, caller)
        if self._tasks is not None and takes_tasks(ctx):
            return await self._tasks.call(ctx, params)
        return answered(await self.calls.run(ctx, params, caller))


def _nothing_in_headers(_name: str) -> None:
    """No parameter of ours is repeated in a header of HTTP; without this answer the SDK lists all tools at each call."""


async def _told(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Tell what went wrong here as an error of the protocol: without a database, say, nothing is known of a task."""
    try:
        return await call_next(ctx)
    except ForgeError as error:
        details = {"code": str(error.code), "retryable": error.retryable}
        raise MCPError(code=INTERNAL_ERROR, message=error.message, data=details) from error


def _cursor(start: int) -> str:
    return base64.urlsafe_b64encode(str(start).encode()).decode()


def _position(cursor: str | None) -> int:
    """Raises MCPError for a cursor that is none of ours."""
    if cursor is None:
        return 0
    try:
        return max(0, int(base64.urlsafe_b64decode(cursor)))
    except (ValueError, binascii.Error):
        raise MCPError(code=INVALID_PARAMS, message="Unknown cursor; list from the start, without one") from None
