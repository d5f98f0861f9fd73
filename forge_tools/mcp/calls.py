"""`tools/call`: runs an offered tool for a client, sends it progress, and cancels calls that it no longer waits for."""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Collection, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcp import types
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.errors import ForgeError
from forge_tools.model.calls import ExecutionContext, ToolResult
from forge_tools.model.execution import ExecutionStatus, new_id
from forge_tools.model.history import ExecutionRecord, StateChange
from forge_tools.model.overview import told_of
from forge_tools.model.scope import SCOPE, Output, Progress, Stream, Told, scope_for
from forge_tools.model.tools import ToolSpec
from forge_tools.sandbox.reports import ReportBuffer
from forge_tools.schema import clean_text, shown, suggestion

SESSION_HEADER = "mcp-session-id"
LONG_QUEUE = "background"
LONGEST_NAME = 100
"""How many characters of a client's self-description are kept."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""The protocol's form for names of tools."""

END_PATIENCE = 3.0
"""Seconds that cancelling calls may take when the server ends."""

PROGRESS_DELAY = 0.25
PROGRESS_INTERVAL = 1.0
"""Seconds before the first notification about a call, and between those about a silent one; most end before."""

TELL_SECONDS = 0.25
"""The interval of notifications about tools of this process."""

LAST_WORDS = 0.5
"""How long the end of a call may wait for the last of its reports."""

LINE_CHARS = 200
_STEP = 1e-6

_SEVERITIES: dict[types.LoggingLevel, int] = {
    "debug": logging.NOTSET,
    "info": logging.INFO,
    "notice": logging.INFO + 5,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL + 5,
    "emergency": logging.CRITICAL + 10,
}
_LOWEST = "forge-tools/log-level"
"""The key under which a connection stores the level that its client has set."""

Context = ServerRequestContext[Any, Any]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Which tools clients see, and how they are called; None admits every category, tag or name.

    `session_id` is recorded with calls if the transport has no sessions, by default a new one. A call that lasts longer
    than `task_after` seconds becomes a task for clients that let the server decide. With `background_tools`, three more
    tools submit, inspect and cancel calls. `refresh_interval` is how often, in seconds, the catalogue is read. `routes`
    are the queues that configuration names for tools and categories.
    """

    categories: Collection[str] | None = None
    tags: Collection[str] | None = None
    names: Collection[str] | None = None
    working_dir: str = "."
    session_id: str | None = None
    dry_run: bool = False
    background_tools: bool = False
    task_after: float = 5.0
    refresh_interval: float = 5.0
    routes: Mapping[str, str] = field(default_factory=dict)

    def admits(self, spec: ToolSpec) -> bool:
        return (
            _NAME.fullmatch(spec.name) is not None
            and (self.categories is None or spec.category in self.categories)
            and (self.tags is None or not set(spec.tags).isdisjoint(self.tags))
            and (self.names is None or not {spec.name, *spec.aliases}.isdisjoint(self.names))
        )

    def long_queue(self, spec: ToolSpec) -> str | None:
        """Return the queue for calls known to be long: the configured one, or else one where they starve nobody."""
        return None if {spec.name, spec.category.value} & self.routes.keys() else LONG_QUEUE


class Tools(Protocol):
    """The methods of an executor used here: a ToolExecutor, an ExecutorClient and a ToolThread have them."""

    async def call(self, name: str, arguments: Mapping[str, Any], context: ExecutionContext, /) -> ToolResult: ...

    def specs(self) -> list[ToolSpec]: ...


class Calls:
    """Calls of clients: on workers if the executor is a client of them, else in this process."""

    def __init__(self, executor: Tools, offer: Offer) -> None:
        self.offer = offer
        self.own_session = offer.session_id or f"mcp-{new_id()}"
        self.workers = executor if isinstance(executor, ExecutorClient) else None
        self._executor = executor
        self._cancelling: set[asyncio.Task[Any]] = set()

    def session(self, ctx: Context) -> str:
        """Return the session of the client's HTTP connection if any, else that of this server."""
        id_ = ctx.request.headers.get(SESSION_HEADER) if ctx.request is not None else None
        return _disguised(id_) if id_ else self.own_session

    def context(self, ctx: Context, **metadata: object) -> ExecutionContext:
        client = ctx.session.client_params
        return ExecutionContext(
            working_dir=self.offer.working_dir,
            session_id=self.session(ctx),
            agent_id=agent_name(client.client_info) if client else None,
            dry_run=self.offer.dry_run,
            metadata={"mcp": metadata} if metadata else {},
        )

    def offered(self) -> list[ToolSpec]:
        return sorted(filter(self.offer.admits, self._executor.specs()), key=lambda spec: spec.name)

    def missing(self) -> list[str]:
        """Return the names to be offered that no tool has so far."""
        known = {name for spec in self._executor.specs() for name in (spec.name, *spec.aliases)}
        return sorted(set(self.offer.names or ()) - known)

    async def refresh(self) -> None:
        if self.workers is not None:
            await self.workers.catalogue.refresh()

    async def find(self, name: str) -> ToolSpec:
        """Return the offered tool of that name or alias; it may be newer than the last reading of the catalogue.

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
            raise invalid(f"Unknown tool: {shown(name)}{hint}{told}")
        return spec

    def routing_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema whose parameters clients repeat in HTTP headers for routing; few tools have one."""
        spec = self._known(name)
        return spec.input_schema if spec is not None else None

    def is_structured(self, name: str) -> bool:
        """Whether a tool promises objects that follow a schema."""
        spec = self._known(name)
        return spec is not None and spec.output_schema is not None

    async def run(self, ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
        """Call a tool and wait for it; cancelling this cancels the call."""
        spec = await self.find(params.name)
        arguments, context = params.arguments or {}, self.context(ctx)
        if not _listens(ctx):
            return await self._executor.call(spec.name, arguments, context)
        if self.workers is None:
            return await told_here(ctx, self._executor.call(spec.name, arguments, context))
        handle = await submit(self.workers, Call(spec.name, arguments, context))
        if isinstance(handle, ToolResult):
            return handle
        await self.is_over(ctx, handle)
        return await handle.result()

    async def is_over(self, ctx: Context, handle: Handle, patience: float | None = None) -> bool:
        """Wait for the end of a call, at most `patience` seconds, and report progress meanwhile.

        Cancelling this cancels the call.
        """
        waiting = asyncio.ensure_future(handle.result())
        telling = asyncio.ensure_future(_tell(ctx, handle, waiting)) if _listens(ctx) else None
        try:
            await asyncio.wait([waiting], timeout=patience)
            if telling is not None and waiting.done():
                await asyncio.wait([telling], timeout=LAST_WORDS)
        except asyncio.CancelledError:
            # In a task of its own: a cancelled request can wait for nothing any more.
            cancelling = asyncio.ensure_future(_cancel(handle))
            self._cancelling.add(cancelling)
            cancelling.add_done_callback(self._cancelling.discard)
            raise
        finally:
            is_over = waiting.done()
            # This ends only the waiting: the call itself goes on, as a task, unless it was cancelled above.
            for task in filter(None, (waiting, telling)):
                task.cancel()
        return is_over

    async def settle(self) -> None:
        """Wait for calls to be cancelled, but not for a database that is unavailable."""
        if self._cancelling:
            await asyncio.wait(self._cancelling, timeout=END_PATIENCE)

    def _known(self, name: str) -> ToolSpec | None:
        named = (spec for spec in self._executor.specs() if name == spec.name or name in spec.aliases)
        return next(filter(self.offer.admits, named), None)


def invalid(message: str) -> MCPError:
    return MCPError(code=types.INVALID_PARAMS, message=message)


async def submit(client: ExecutorClient, call: Call) -> Handle | ToolResult:
    """Submit a call to workers; a failed result says why it was refused."""
    try:
        return await client.calls.submit(call)
    except ForgeError as error:
        return ToolResult.fail(error.message, error_code=error.code)


async def told_here(ctx: Context, call: Coroutine[Any, Any, ToolResult]) -> ToolResult:
    notices, buffer = _Notices(ctx), ReportBuffer(lambda: None, interval=TELL_SECONDS)

    async def tell() -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            for told in buffer.take():
                await notices.send_report(told)

    telling = asyncio.ensure_future(tell())
    before = SCOPE.set(scope_for(buffer))  # the call begins below, and takes this context along to the tools' thread
    try:
        result = await call
    finally:
        SCOPE.reset(before)
        telling.cancel()
    for told in buffer.close():
        await notices.send_report(told)
    return result


def described(record: ExecutionRecord, progress: Progress | None = None) -> str:
    if record.status is ExecutionStatus.QUEUED:
        return f"{record.tool} waits in queue {record.queue}"
    if record.status is not ExecutionStatus.RUNNING:
        return f"{record.tool}: {record.error or record.status.value.replace('_', ' ')}"
    text = f"{record.tool} runs on {record.hostname or 'a worker'}"
    if progress is None or progress.attempt != record.attempt:
        return text
    of = f" of {progress.total:g}" if progress.total is not None else ""
    return f"{text}: {progress.done:g}{of}" + (f", {progress.message}" if progress.message else "")


async def set_log_level(ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    """`logging/setLevel`: from now on, send this client what its calls log at that level or above."""
    connection_of(ctx).state[_LOWEST] = _SEVERITIES[params.level]
    return types.EmptyResult()


def connection_of(ctx: Context) -> Connection:
    """Return the connection of the client, which alone knows its own end, and keeps what lasts as long."""
    return ctx.session._connection  # noqa: SLF001 the SDK gives it to nobody else


class _Notices:
    """The progress and the log of one request, as far as its client wants them.

    The protocol requires increasing numbers, whatever a tool reports.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._lowest = _lowest_level(ctx)
        self._number = 0.0
        self._total: float | None = None
        self._message: str | None = None
        self._sent_at = time.monotonic()

    async def send(self, message: str | None = None, done: float | None = None, total: float | None = None) -> None:
        """Send progress; omitted values stay as they were."""
        self._number = done if done is not None and done > self._number else self._number + _STEP
        self._total = total if done is not None else self._total
        self._message = message or self._message
        self._sent_at = time.monotonic()
        await self._ctx.session.report_progress(self._number, self._total, self._message)

    async def send_output(self, text: str, stream: Stream, level: int | None) -> None:
        """Send log messages as the log; of other output, send the last line."""
        if stream == "output":
            lines = text.strip().splitlines()
            await self.send(lines[-1][:LINE_CHARS] if lines else None)
        elif stream == "log" and level is not None and self._lowest is not None and level >= self._lowest:
            severity = [name for name, least in _SEVERITIES.items() if least <= max(level, 0)][-1]
            params = types.LoggingMessageNotificationParams(level=severity, data=text.rstrip("\n"))
            message = types.LoggingMessageNotification(params=params)
            await self._ctx.session.send_notification(message, self._ctx.request_id)

    async def send_report(self, told: Told) -> None:
        if told.done is not None:
            await self.send(told.text, told.done, told.total)
        else:
            await self.send_output(told.text or "", told.stream, told.level)

    async def repeat(self) -> None:
        """Repeat the last notification after each period of silence."""
        while True:
            left = self._sent_at + PROGRESS_INTERVAL - time.monotonic()
            if left <= 0:
                await self.send()
            await asyncio.sleep(left if left > 0 else PROGRESS_INTERVAL)


async def _tell(ctx: Context, handle: Handle, waiting: "asyncio.Future[ToolResult]") -> None:
    """Send the reports of a call on a worker, or its state during silence, as a sign of life for the client.

    For a brief call, only the log is sent.
    """
    if _lowest_level(ctx) is None:
        await asyncio.wait([waiting], timeout=PROGRESS_DELAY)
        if waiting.done():
            return
    notices = _Notices(ctx)
    repeating = asyncio.ensure_future(notices.repeat())
    try:
        async with aclosing(handle.events()) as events:
            async for event in events:
                if isinstance(event, StateChange) and _wants_progress(ctx):
                    await notices.send(described(await handle.record()))
                elif isinstance(event, Progress):
                    await notices.send(event.message, event.done, event.total)
                elif isinstance(event, Output):
                    await notices.send_output(event.text, event.stream, event.level)
    except ForgeError as error:
        logger.warning("Progress cannot be sent", extra={"error": str(error)})
    finally:
        repeating.cancel()


async def _cancel(handle: Handle) -> None:
    try:
        await handle.cancel("the MCP client cancelled it or disconnected")
    except ForgeError as error:
        logger.warning("A call could not be cancelled", extra={"error": str(error)})


def _listens(ctx: Context) -> bool:
    return _wants_progress(ctx) or _lowest_level(ctx) is not None


def _wants_progress(ctx: Context) -> bool:
    return _meta(ctx).get("progressToken") is not None


def _lowest_level(ctx: Context) -> int | None:
    """Return the lowest log level that the client wants: stated in the request, or until 2025-11-25 once for all."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return _SEVERITIES.get(_meta(ctx).get(types.LOG_LEVEL_META_KEY, ""))
    level: int | None = connection_of(ctx).state.get(_LOWEST)
    return level


def _meta(ctx: Context) -> Mapping[str, Any]:
    meta = (ctx.params or {}).get("_meta")
    return meta if isinstance(meta, dict) else {}


def agent_name(client: types.Implementation) -> str:
    return clean_text(f"{client.name}/{client.version}" if client.version else client.name)[:LONGEST_NAME]


def _disguised(session_id: str) -> str:
    """Replace the id of a session for the history, since whoever knows the original may use the session."""
    return f"mcp-{hashlib.blake2b(session_id.encode(), digest_size=12).hexdigest()}"
