"""A ToolSpec as the protocol lists it, and a ToolResult as it answers."""

import json
import re
from typing import Any

from mcp import types

from forge_tools.errors import InvalidCallError
from forge_tools.records import ToolResult, ToolSpec, artifact_id
from forge_tools.schemas import render
from forge_tools.validation import encode_json

META = "forge-tools"
"""Prefix of what we add under `_meta`."""

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_-]+")
_LONGEST = 2**31
_SURROGATE = "\\ud"
"""How one begins in ASCII JSON."""

_TASKS_OPTIONAL = types.ToolExecution(task_support="optional")


def listed(spec: ToolSpec, *, as_task: bool) -> types.Tool:
    """The tool as `tools/list` shows it; `as_task` says that calls of it may be made tasks."""
    schema = render(spec, "mcp")
    return types.Tool(
        name=spec.name,
        title=_WORDS.sub(" ", spec.name),
        description=spec.description,
        input_schema=schema["inputSchema"],
        annotations=types.ToolAnnotations.model_validate(schema["annotations"]),
        execution=_TASKS_OPTIONAL if as_task else None,
    )


def answered(result: ToolResult) -> types.CallToolResult:
    """The result of a call, a failed one with `isError` and its reason as text.

    An output that is a JSON object is given as structured content too. What was too long is a link to the whole of it.
    """
    meta = {f"{META}/execution-id": result.metadata.get("execution_id"), f"{META}/error-code": result.error_code}
    said = {key: str(value) for key, value in meta.items() if value is not None}
    return types.CallToolResult(
        content=_content(result),
        structured_content=_structured(result),
        is_error=not result.success,
        _meta=said or None,
    )


def refused(message: str) -> types.CallToolResult:
    """A call that came to nothing, for a reason that the model can act on."""
    return answered(ToolResult.fail(message))


def _content(result: ToolResult) -> list[types.ContentBlock]:
    texts = [] if result.success else [_reason(result)]
    if result.success or result.output is not None:  # what it had put out before it failed
        texts.append(ToolResult.ok(result.output).to_text())
    content: list[types.ContentBlock] = [types.TextContent(text=_encodable(text)) for text in texts]
    link = _link(result)
    return [*content, link] if link else content


def _reason(result: ToolResult) -> str:
    lines = [str(one) for one in result.metadata.get("errors") or ()]
    text = result.to_text()
    more = [line for line in lines if line not in text]
    hint = result.metadata.get("hint")
    return "\n".join([text, *more, *([str(hint)] if hint else [])])


def _structured(result: ToolResult) -> dict[str, Any] | None:
    """The output where it is a JSON object: what comes from a worker is JSON, what a tool here returns may be anything."""
    if not result.success or not isinstance(result.output, dict):
        return None
    try:
        text = encode_json(result.output, "output", _LONGEST)
    except InvalidCallError:
        return None
    strict: dict[str, Any] = json.loads(text)
    return _encodable(strict) if _SURROGATE in text else strict


def _encodable(value: Any) -> Any:
    """Without lone surrogates, which no transport can encode."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


def _link(result: ToolResult) -> types.ResourceLink | None:
    handle = result.metadata.get("artifact")
    if not isinstance(handle, str) or artifact_id(handle) is None:
        return None
    return types.ResourceLink(
        uri=handle,
        name=handle,
        title="The whole output",
        description="The output was too long for a result. Read this resource for all of it, with ?offset=LINE for a page.",
        mime_type="text/plain",
    )
