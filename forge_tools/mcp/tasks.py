"""Long calls: tasks of the protocol, and three tools for clients without tasks; each has the id of its execution."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from mcp import types
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.errors import ExecutionNotFoundError, ForgeError, ResultTimeoutError
from forge_tools.mcp.calls import Calls, Context, described, invalid, submit
from forge_tools.mcp.content import answered, listed, shown_whole
from forge_tools.model.calls import ToolResult
from forge_tools.model.execution import ExecutionStatus
from forge_tools.model.history import ExecutionRecord
from forge_tools.model.scope import Progress
from forge_tools.model.tools import Capabilities, ToolCategory, ToolParameter, ToolSpec
from forge_tools.schema import shown

EXTENSION = "io.modelcontextprotocol/tasks"
CORE_VERSION = "2025-11-25"
"""The version of the protocol whose core includes tasks."""

POLL_MS = 1_000
LONGEST_TTL_MS = 10 * 365 * 86_400_000
"""A client may ask for more than a timedelta can hold."""

PAGE = 50
CANCEL_PATIENCE = 5.0
"""Seconds that `tasks/cancel` waits for the end of a call, so that it can report how it ended."""

LONGEST_WAIT = 30.0
"""Seconds that one inspection of an execution may wait; clients give up on answers that take much longer."""

RELATED = "io.modelcontextprotocol/related-task"
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DECLARED = types.ClientCapabilities(extensions={EXTENSION: {}})


class Tasks:
    """Serves tasks in both forms: of 2025-11-25, requested by clients, and the later extension, where servers decide."""

    def __init__(self, calls: Calls, client: ExecutorClient) -> None:
        self._calls = calls
        self._client = client

    async def create(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer a call that is to become a task (2025-11-25) at once; pass everything else on.

        It is a middleware because handler results are checked against the protocol's results without tasks.
        """
        is_call = ctx.method == "tools/call" and ctx.request_id is not None and "task" in (ctx.params or {})
        if not is_call or ctx.protocol_version != CORE_VERSION or ctx.session.client_params is None:
            return await call_next(ctx)
        params = types.CallToolRequestParams.model_validate(ctx.params, by_name=False)
        asked = params.task.ttl if params.task else None
        ttl = None if asked is None else min(max(asked, 0), LONGEST_TTL_MS)
        handle = await self._submit(ctx, params, ttl=ttl, is_long=True)
        if isinstance(handle, ToolResult):
            return answered(handle)
        return {"task": _form(await handle.record(), is_core=True)}

    async def call(self, ctx: Context, params: types.CallToolRequestParams) -> HandlerResult:
        """Call a tool for a client that accepts a task as the answer: it gets one if the call is not over soon."""
        handle = await self._submit(ctx, params, ttl=None, is_long=False)
        if isinstance(handle, ToolResult):
            return answered(handle)
        if await self._calls.is_over(ctx, handle, self._calls.offer.task_after):
            result = await handle.result()
            return await shown_whole(result, is_structured=self._calls.is_structured(params.name))
        return {"resultType": "task", **_form(await handle.record(), is_core=False)}

    async def get(self, ctx: Context, params: types.GetTaskRequestParams) -> HandlerResult:
        record = await self._find(ctx, params.task_id)
        progress = (await self._progress_of([record])).get(record.id)
        if ctx.protocol_version == CORE_VERSION:
            return _form(record, progress, is_core=True)
        outcome: dict[str, Any] = {}
        if _status(record) == "completed":
            outcome = {"result": await self._payload(record)}
        elif _status(record) == "failed":
            outcome = {"error": {"code": types.INTERNAL_ERROR, "message": record.error or record.status.value}}
        return {"resultType": "complete", **_form(record, progress, is_core=False), **outcome}

    async def result(self, ctx: Context, params: types.GetTaskRequestParams) -> HandlerResult:
        """Wait for the end of a task and return the answer of its call."""
        _require_core(ctx)
        record = await self._find(ctx, params.task_id)
        payload = await self._payload(record)
        return {**payload, "_meta": {**payload.get("_meta", {}), RELATED: {"taskId": record.id}}}

    async def cancel(self, ctx: Context, params: types.GetTaskRequestParams) -> HandlerResult:
        record = await self._find(ctx, params.task_id)
        is_core = ctx.protocol_version == CORE_VERSION
        if record.is_over and is_core:
            raise invalid(f"Task {record.id} has already ended: {record.status.value}")
        handle = self._client.calls.attach(record.id)
        await handle.cancel("cancelled as a task by an MCP client")
        if not is_core:
            return {"resultType": "complete"}
        with suppress(ResultTimeoutError):
            await handle.result(CANCEL_PATIENCE)
        return _form(await handle.record(), is_core=True)

    async def update(self, ctx: Context, params: types.GetTaskRequestParams) -> HandlerResult:
        """Accept input for a task; none of our tools requests any, so it is ignored."""
        if ctx.protocol_version == CORE_VERSION:
            raise _no_method(ctx)
        await self._find(ctx, params.task_id)
        return {"resultType": "complete"}

    async def list(self, ctx: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        """Return the tasks of this session, newest first."""
        _require_core(ctx)
        if params.cursor is not None and not _ID.fullmatch(params.cursor):
            raise invalid("Unknown cursor; list from the start, without one")
        session = self._calls.session(ctx)
        records = await self._client.history.list(session_id=session, limit=PAGE + 1, before=params.cursor)
        # Other calls of the session are left out only here, so a page may be short; its cursor counts them.
        page = [record for record in records[:PAGE] if mark_of(record).get("task") is True and not _is_expired(record)]
        progress = await self._progress_of(page)
        more = {"nextCursor": records[PAGE - 1].id} if len(records) > PAGE else {}
        return {"tasks": [_form(record, progress.get(record.id), is_core=True) for record in page], **more}

    async def _submit(
        self, ctx: Context, params: types.CallToolRequestParams, *, ttl: int | None, is_long: bool
    ) -> Handle | ToolResult:
        spec = await self._calls.find(params.name)
        context = self._calls.context(ctx, task=True, ttl=ttl)
        queue = self._calls.offer.long_queue(spec) if is_long else None
        return await submit(self._client, Call(spec.name, params.arguments or {}, context, queue=queue))

    async def _progress_of(self, records: Sequence[ExecutionRecord]) -> Mapping[str, Progress]:
        running = [one.id for one in records if one.status is ExecutionStatus.RUNNING]
        return await self._client.history.progress_of(running)

    async def _payload(self, record: ExecutionRecord) -> dict[str, Any]:
        result = await self._client.calls.attach(record.id).result()
        answer = await shown_whole(result, is_structured=self._calls.is_structured(record.tool))
        return answer.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def _find(self, ctx: Context, task_id: str) -> ExecutionRecord:
        """Return the execution behind a task. Ids cannot be guessed, and executions that are not tasks are not shown."""
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            _require_core(ctx)
        elif not takes_tasks(ctx):
            raise MCPError(
                code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                message="Missing required client capability",
                data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        _require_same_name(ctx, task_id)
        with suppress(ExecutionNotFoundError):
            record = await self._client.history.get(task_id)
            # The whole id, of which `get` accepts the beginning.
            if record.id == task_id and mark_of(record).get("task") is True:
                if _is_expired(record):
                    raise invalid(f"Task {record.id} has expired")
                return record
        raise invalid(f"Unknown task: {shown(task_id)}")


def takes_tasks(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and ctx.session.check_client_capability(_DECLARED)


def _require_same_name(ctx: Context, task_id: str) -> None:
    """Refuse a request that intermediaries route by a different task id (SEP-2243); some clients send none."""
    named = ctx.request.headers.get(MCP_NAME_HEADER) if ctx.request is not None else None
    if named is not None and ctx.protocol_version != CORE_VERSION and decode_header_value(named) != task_id:
        message = f"The header {MCP_NAME_HEADER} does not name the task of the request"
        raise MCPError(code=types.HEADER_MISMATCH, message=message)


def _require_core(ctx: Context) -> None:
    if ctx.protocol_version != CORE_VERSION:
        raise _no_method(ctx)


def _no_method(ctx: Context) -> MCPError:
    return MCPError(code=types.METHOD_NOT_FOUND, message="Method not found", data=ctx.method)


def mark_of(record: ExecutionRecord) -> dict[str, Any]:
    """Return what was recorded in the context of a call when it was made a task, or submitted."""
    found = (record.context.get("metadata") or {}).get("mcp")
    return found if isinstance(found, dict) else {}


def _is_expired(record: ExecutionRecord) -> bool:
    ttl = mark_of(record).get("ttl")
    age = datetime.now(UTC) - record.queued_at
    return isinstance(ttl, int) and record.is_over and age > timedelta(milliseconds=ttl)


def _form(record: ExecutionRecord, progress: Progress | None = None, *, is_core: bool) -> dict[str, Any]:
    """Return a task in the form of 2025-11-25 (`is_core`), or of the extension.

    A call that ended with an error of the tool has failed in the former; in the latter, only one without an answer.
    """
    status = _status(record)
    if is_core and status == "completed" and record.status is not ExecutionStatus.SUCCEEDED:
        status = "failed"
    told_at = progress.at if progress is not None else None
    return {
        "taskId": record.id,
        "status": status,
        "statusMessage": described(record, progress),
        "createdAt": _iso(record.queued_at),
        "lastUpdatedAt": _iso(record.completed_at or told_at or record.started_at or record.queued_at),
        "ttl" if is_core else "ttlMs": mark_of(record).get("ttl"),
        "pollInterval" if is_core else "pollIntervalMs": POLL_MS,
    }


def _status(record: ExecutionRecord) -> str:
    if not record.is_over:
        return "working"
    if record.status in {ExecutionStatus.LOST, ExecutionStatus.EXPIRED}:
        return "failed"
    return "cancelled" if record.status is ExecutionStatus.CANCELLED else "completed"


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


_CALL = ToolParameter(name="execution_id", type="string", description="The execution_id that submit_tool returned.")


def _tool(name: str, said: str, *parameters: ToolParameter, **can: bool) -> types.Tool:
    category, capabilities = ToolCategory.MCP, Capabilities(**can)
    spec = ToolSpec(name=name, description=said, category=category, parameters=parameters, capabilities=capabilities)
    return listed(spec, as_task=False)


SUBMIT = _tool(
    "submit_tool",
    "Start a call of another tool that may take long, and return its execution_id at once. "
    "Follow it with poll_execution.",
    ToolParameter(name="tool", type="string", description="The tool to call."),
    ToolParameter(name="arguments", type="object", description="Its arguments.", required=False),
    executes_commands=True,
    accesses_network=True,
)
POLL = _tool(
    "poll_execution",
    "Return the state of a call that submit_tool started, or its result if it has ended.",
    _CALL,
    ToolParameter(
        name="wait_seconds",
        type="number",
        description="Wait up to this many seconds for its end.",
        required=False,
        default=0,
        minimum=0,
        maximum=LONGEST_WAIT,
    ),
    idempotent=True,
)
CANCEL = _tool(
    "cancel_execution",
    "Cancel a waiting or running call that submit_tool started.",
    _CALL,
    executes_commands=True,
    idempotent=True,
)


class BackgroundTools:
    """The three tools; they replace tools of the catalogue with the same names."""

    tools = (SUBMIT, POLL, CANCEL)

    def __init__(self, calls: Calls, client: ExecutorClient) -> None:
        self._calls = calls
        self._client = client

    async def call(self, name: str, arguments: Mapping[str, Any], ctx: Context) -> types.CallToolResult | None:
        """Run the tool of that name, if it is one of these."""
        if name == SUBMIT.name:
            return await self._submit(arguments, ctx)
        run = {POLL.name: self._poll, CANCEL.name: self._cancel}.get(name)
        if run is None:
            return None
        try:
            return await run(await self._find(arguments.get("execution_id")), arguments)
        except ForgeError as error:
            return _refused(error.message)

    async def _submit(self, arguments: Mapping[str, Any], ctx: Context) -> types.CallToolResult:
        name, given = arguments.get("tool"), arguments.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(given, Mapping):
            return _refused("submit_tool needs `tool`, the name of a tool, and `arguments`, an object.")
        try:
            spec = await self._calls.find(name)
        except MCPError as error:
            return _refused(error.error.message)
        context = self._calls.context(ctx, submitted=True)
        call = Call(spec.name, given, context, queue=self._calls.offer.long_queue(spec))
        handle = await submit(self._client, call)
        if isinstance(handle, ToolResult):
            return answered(handle)
        record = await handle.record()
        return answered(await handle.result()) if record.is_over else _state(record)  # over already: it was rejected

    async def _poll(self, record: ExecutionRecord, arguments: Mapping[str, Any]) -> types.CallToolResult:
        seconds = arguments.get("wait_seconds") or 0
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            return _refused("wait_seconds must be a number.")
        if record.is_over or seconds > 0:
            with suppress(ResultTimeoutError):
                handle = self._client.calls.attach(record.id)
                return await shown_whole(await handle.result(None if record.is_over else min(seconds, LONGEST_WAIT)))
            record = await self._client.history.get(record.id)
        return _state(record, (await self._client.history.progress_of([record.id])).get(record.id))

    async def _cancel(self, record: ExecutionRecord, _arguments: Mapping[str, Any]) -> types.CallToolResult:
        outcome = await self._client.calls.cancel(record.id, "cancelled by an MCP client")
        return _said({"execution_id": record.id, "outcome": outcome})

    async def _find(self, asked: object) -> ExecutionRecord:
        """Return an execution that came from here: others are not shown, even to those who know their ids."""
        if isinstance(asked, str) and len(asked) == 36:  # a whole id, of which `get` accepts the beginning
            record = await self._client.history.get(asked)
            if "submitted" in mark_of(record):
                return record
        given = shown(repr(asked))
        raise ForgeError(f"There is no submitted call {given}; pass the execution_id that submit_tool returned.")


def _refused(message: str) -> types.CallToolResult:
    return answered(ToolResult.fail(message))


def _state(record: ExecutionRecord, progress: Progress | None = None) -> types.CallToolResult:
    return _said({"execution_id": record.id, "status": record.status.value, "said": described(record, progress)})


def _said(facts: dict[str, Any]) -> types.CallToolResult:
    text = "\n".join(f"{name}: {value}" for name, value in facts.items())
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=facts)
