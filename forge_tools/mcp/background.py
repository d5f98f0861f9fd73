"""Three ordinary tools for clients that know no tasks: submit a call, look after it, cancel it."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations

from forge_tools.client import Call, ExecutorClient
from forge_tools.errors import ForgeError, ResultTimeoutError
from forge_tools.mcp.calling import Calls, submit
from forge_tools.mcp.offer import Caller, Offer
from forge_tools.mcp.progress import described
from forge_tools.mcp.rendering import answered, refused
from forge_tools.mcp.tasks import as_result
from forge_tools.records import ExecutionRecord, Progress, ToolResult
from forge_tools.validation import shown

LONGEST_WAIT = 30.0
"""Seconds that one look at an execution may wait; clients give up on answers that take much longer."""

_ID = {"type": "string", "description": "What submit_tool returned as execution_id."}

SUBMIT = Tool(
    name="submit_tool",
    title="submit tool",
    description=(
        "Start a call of one of the other tools that may take long, and return its execution_id at once. "
        "Look after it with poll_execution."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "tool": {"type": "string", "description": "The tool to call."},
            "arguments": {"type": "object", "description": "Its arguments."},
        },
        "required": ["tool"],
    },
    annotations=ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
    ),
)
POLL = Tool(
    name="poll_execution",
    title="poll execution",
    description="Tell where a call that submit_tool started is, or its result if it is over.",
    input_schema={
        "type": "object",
        "properties": {
            "execution_id": _ID,
            "wait_seconds": {
                "type": "number",
                "description": "Wait up to that long for its end.",
                "minimum": 0,
                "maximum": LONGEST_WAIT,
                "default": 0,
            },
        },
        "required": ["execution_id"],
    },
    annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
)
CANCEL = Tool(
    name="cancel_execution",
    title="cancel execution",
    description="Cancel a call that submit_tool started, waiting or running.",
    input_schema={"type": "object", "properties": {"execution_id": _ID}, "required": ["execution_id"]},
    annotations=ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
    ),
)


class BackgroundTools:
    """The three tools; they take the place of tools of the catalogue that have their names."""

    def __init__(self, calls: Calls, client: ExecutorClient, offer: Offer) -> None:
        self._calls = calls
        self._client = client
        self._offer = offer

    @property
    def tools(self) -> list[Tool]:
        return [SUBMIT, POLL, CANCEL]

    def find(self, name: str) -> Callable[[Mapping[str, Any], Caller], Awaitable[CallToolResult]] | None:
        """What runs the tool of that name, if it is one of these."""
        return {SUBMIT.name: self._submit, POLL.name: self._poll, CANCEL.name: self._cancel}.get(name)

    async def _submit(self, arguments: Mapping[str, Any], caller: Caller) -> CallToolResult:
        name, given = arguments.get("tool"), arguments.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(given, Mapping):
            return refused("submit_tool needs `tool`, the name of a tool, and `arguments`, an object.")
        try:
            spec = await self._calls.find(name)
        except MCPError as error:
            return refused(error.error.message)
        context = self._offer.context(caller, submitted=True)
        call = Call(spec.name, given, context, queue=self._offer.long_queue(spec))
        handle = await submit(self._client, call)
        if isinstance(handle, ToolResult):
            return answered(handle)
        record = await handle.record()
        return as_result(record) if record.is_over else _state(record)  # over already: it was rejected

    async def _poll(self, arguments: Mapping[str, Any], caller: Caller) -> CallToolResult:
        try:
            record = await self._find(arguments, caller)
            seconds = arguments.get("wait_seconds") or 0
            if not isinstance(seconds, int | float) or isinstance(seconds, bool):
                return refused("wait_seconds must be a number.")
            if not record.is_over and seconds > 0:
                record = await self._wait(record, min(float(seconds), LONGEST_WAIT))
            if record.is_over:
                return as_result(record)
            return _state(record, (await self._client.history.progress_of([record.id])).get(record.id))
        except ForgeError as error:
            return refused(error.message)

    async def _cancel(self, arguments: Mapping[str, Any], caller: Caller) -> CallToolResult:
        try:
            record = await self._find(arguments, caller)
            outcome = await self._client.calls.cancel(record.id, "cancelled by an MCP client")
        except ForgeError as error:
            return refused(error.message)
        return _said({"execution_id": record.id, "outcome": outcome})

    async def _wait(self, record: ExecutionRecord, seconds: float) -> ExecutionRecord:
        with suppress(ResultTimeoutError):
            await self._client.calls.attach(record.id).result(seconds)
        return await self._client.history.get(record.id)

    async def _find(self, arguments: Mapping[str, Any], caller: Caller) -> ExecutionRecord:
        """An execution that came from here: others are not shown, whoever knows their ids."""
        asked = arguments.get("execution_id")
        if isinstance(asked, str) and len(asked) == 36:
            record = await self._client.history.get(asked)
            if "submitted" in ((record.context.get("metadata") or {}).get("mcp") or {}):
                return record
        raise ForgeError(
            f"There is no submitted call {shown(repr(asked))}; give what submit_tool returned as execution_id."
        )


def _state(record: ExecutionRecord, progress: Progress | None = None) -> CallToolResult:
    return _said({"execution_id": record.id, "status": record.status.value, "said": described(record, progress)})


def _said(facts: dict[str, Any]) -> CallToolResult:
    text = "\n".join(f"{name}: {value}" for name, value in facts.items())
    return CallToolResult(content=[TextContent(text=text)], structured_content=facts)
