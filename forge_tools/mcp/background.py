"""Three ordinary tools for clients that know no tasks: submit a call, look after it, cancel it."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations

from forge_tools.client import Call, ExecutorClient
from forge_tools.errors import ForgeError, ResultTimeoutError
from forge_tools.mcp.calls import Calls, described, submit
from forge_tools.mcp.content import answered, shown_whole
from forge_tools.mcp.offer import Caller
from forge_tools.mcp.tasks import as_result, mark_of
from forge_tools.model import ExecutionRecord, Progress, ToolResult
from forge_tools.schema import shown

LONGEST_WAIT = 30.0
"""Seconds that one look at an execution may wait; clients give up on answers that take much longer."""

_ID = {"type": "string", "description": "What submit_tool returned as execution_id."}
_WAIT = {
    "type": "number",
    "description": "Wait up to that long for its end.",
    "minimum": 0,
    "maximum": LONGEST_WAIT,
    "default": 0,
}


def _tool(name: str, description: str, schema: dict[str, Any], **hints: bool) -> Tool:
    annotations = ToolAnnotations(**hints)
    title = name.replace("_", " ")
    schema = {"type": "object", **schema}
    return Tool(name=name, title=title, description=description, input_schema=schema, annotations=annotations)


SUBMIT = _tool(
    "submit_tool",
    "Start a call of one of the other tools that may take long, and return its execution_id at once. "
    "Look after it with poll_execution.",
    {
        "properties": {
            "tool": {"type": "string", "description": "The tool to call."},
            "arguments": {"type": "object", "description": "Its arguments."},
        },
        "required": ["tool"],
    },
    read_only_hint=False,
    destructive_hint=True,
    idempotent_hint=False,
    open_world_hint=True,
)
POLL = _tool(
    "poll_execution",
    "Tell where a call that submit_tool started is, or its result if it is over.",
    {"properties": {"execution_id": _ID, "wait_seconds": _WAIT}, "required": ["execution_id"]},
    read_only_hint=True,
    idempotent_hint=True,
    open_world_hint=False,
)
CANCEL = _tool(
    "cancel_execution",
    "Cancel a call that submit_tool started, waiting or running.",
    {"properties": {"execution_id": _ID}, "required": ["execution_id"]},
    read_only_hint=False,
    destructive_hint=True,
    idempotent_hint=True,
    open_world_hint=False,
)


class BackgroundTools:
    """The three tools; they take the place of tools of the catalogue that have their names."""

    tools = (SUBMIT, POLL, CANCEL)

    def __init__(self, calls: Calls, client: ExecutorClient) -> None:
        self._calls = calls
        self._client = client

    async def call(self, name: str, arguments: Mapping[str, Any], caller: Caller) -> CallToolResult | None:
        """Run the tool of that name, if it is one of these."""
        if name == SUBMIT.name:
            return await self._submit(arguments, caller)
        run = {POLL.name: self._poll, CANCEL.name: self._cancel}.get(name)
        if run is None:
            return None
        try:
            return await run(await self._find(arguments.get("execution_id")), arguments)
        except ForgeError as error:
            return _refused(error.message)

    async def _submit(self, arguments: Mapping[str, Any], caller: Caller) -> CallToolResult:
        name, given = arguments.get("tool"), arguments.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(given, Mapping):
            return _refused("submit_tool needs `tool`, the name of a tool, and `arguments`, an object.")
        try:
            spec = await self._calls.find(name)
        except MCPError as error:
            return _refused(error.error.message)
        context = self._calls.offer.context(caller, submitted=True)
        call = Call(spec.name, given, context, queue=self._calls.offer.long_queue(spec))
        handle = await submit(self._client, call)
        if isinstance(handle, ToolResult):
            return answered(handle)
        record = await handle.record()
        return answered(as_result(record)) if record.is_over else _state(record)  # over already: it was rejected

    async def _poll(self, record: ExecutionRecord, arguments: Mapping[str, Any]) -> CallToolResult:
        seconds = arguments.get("wait_seconds") or 0
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            return _refused("wait_seconds must be a number.")
        if not record.is_over and seconds > 0:
            with suppress(ResultTimeoutError):
                await self._client.calls.attach(record.id).result(min(float(seconds), LONGEST_WAIT))
            record = await self._client.history.get(record.id)
        if record.is_over:
            return await shown_whole(as_result(record).bind(self._client.calls.parts))
        return _state(record, (await self._client.history.progress_of([record.id])).get(record.id))

    async def _cancel(self, record: ExecutionRecord, _arguments: Mapping[str, Any]) -> CallToolResult:
        outcome = await self._client.calls.cancel(record.id, "cancelled by an MCP client")
        return _said({"execution_id": record.id, "outcome": outcome})

    async def _find(self, asked: object) -> ExecutionRecord:
        """An execution that came from here: others are not shown, whoever knows their ids."""
        if isinstance(asked, str) and len(asked) == 36:
            record = await self._client.history.get(asked)
            if "submitted" in mark_of(record):
                return record
        raise ForgeError(
            f"There is no submitted call {shown(repr(asked))}; give what submit_tool returned as execution_id."
        )


def _refused(message: str) -> CallToolResult:
    """A call that came to nothing, for a reason that the model can act on."""
    return answered(ToolResult.fail(message))


def _state(record: ExecutionRecord, progress: Progress | None = None) -> CallToolResult:
    return _said({"execution_id": record.id, "status": record.status.value, "said": described(record, progress)})


def _said(facts: dict[str, Any]) -> CallToolResult:
    text = "\n".join(f"{name}: {value}" for name, value in facts.items())
    return CallToolResult(content=[TextContent(text=text)], structured_content=facts)
