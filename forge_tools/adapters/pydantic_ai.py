"""Tools of any executor as a toolset of Pydantic AI."""

import json
from functools import cache
from typing import Any, Unpack

from forge_tools.adapters.conversation import extra
from forge_tools.adapters.toolset import Choice, Executor, ToolCall, Toolset
from forge_tools.errors import ErrorCode
from forge_tools.model.calls import ToolResult
from forge_tools.schema.providers import render

_MISTAKEN = frozenset({ErrorCode.VALIDATION_ERROR, ErrorCode.TOOL_NOT_FOUND})
"""Errors in the call itself, which the model can correct."""

_TOLD = {"category", "tags", "version", "capabilities"}


def pydantic_ai_toolset(
    executor: Executor, *, max_retries: int | None = None, id: str | None = None, **choice: Unpack[Choice]
) -> Any:
    """Offer the tools of `executor` to agents, as an `AbstractToolset`; choice and `artifacts` are those of `Toolset`.

    A call with wrong arguments becomes a `ModelRetry`, limited to `max_retries` for each tool, by default the agent's
    limit; a failed call becomes a `ToolFailed`, which has no such limit. The `metadata` of a tool are its `category`,
    `tags`, `version` and `capabilities`, by which an agent's own code filters it or requires approval; those of a
    result are the fields of the `ToolResult` except its output. An ExecutorClient must be connected, on the loop that
    the agent runs on.

    Raises:
        ImportError: without Pydantic AI.
        ToolNotFoundError: when no tool has a given name.
    """
    return _toolset_class()(Toolset(executor, **choice), max_retries, id)


@cache
def _toolset_class() -> Any:
    with extra("pydantic-ai", "Pydantic AI"):
        from pydantic_ai import BinaryContent, ModelRetry, RunContext, ToolDefinition, ToolReturn
        from pydantic_ai.exceptions import ToolFailed
        from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
        from pydantic_core import SchemaValidator, core_schema

    any_object = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))

    class ExecutorToolset(AbstractToolset[Any]):
        """Tools that run wherever their executor runs them. Arguments are checked there, so every call is a row."""

        def __init__(self, toolset: Toolset, max_retries: int | None, id: str | None) -> None:
            self._toolset = toolset
            self._max_retries = max_retries
            self._id = id

        @property
        def id(self) -> str | None:
            return self._id

        async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
            retries = ctx.max_retries if self._max_retries is None else self._max_retries
            return {
                spec.name: ToolsetTool(
                    toolset=self,
                    tool_def=ToolDefinition(
                        name=spec.name,
                        description=spec.description,
                        parameters_json_schema=render(spec, "openai")["function"]["parameters"],
                        metadata=spec.model_dump(mode="json", include=_TOLD),
                    ),
                    max_retries=retries,
                    args_validator=any_object,
                )
                for spec in self._toolset.specs()
            }

        async def call_tool(
            self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
        ) -> Any:
            [answer] = await self._toolset.answer([ToolCall(ctx.tool_call_id or "", name, tool_args)])
            if answer.is_error:
                problem = ModelRetry if answer.result.error_code in _MISTAKEN else ToolFailed
                raise problem(answer.text)
            seen = [BinaryContent(one.data, media_type=one.mime_type) for one in answer.media]
            return ToolReturn(answer.text, content=seen or None, metadata=_record(answer.result))

    return ExecutorToolset


def _record(result: ToolResult) -> dict[str, Any]:
    """Return what a history can keep in any storage: in process, tools may return more than JSON can hold."""
    fields = json.dumps(result.model_dump(exclude={"output"}), ensure_ascii=False, default=str, skipkeys=True)
    record: dict[str, Any] = json.loads(fields.encode(errors="replace"))
    return record
