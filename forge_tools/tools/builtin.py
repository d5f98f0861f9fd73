"""What the built-in tools share: parameters that are declared once, as the fields of a record, and how they are told."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from forge_tools.model import Capabilities, ExecutionContext, Lane, ToolParameter, ToolResult
from forge_tools.sandbox.paths.refusals import MAX_PATH_CHARS
from forge_tools.tool.base import BaseTool

PATH: dict[str, int] = {"min_length": 1, "max_length": MAX_PATH_CHARS}
"""What every path that a caller passes is held to."""

GLOBS: dict[str, Any] = {"items": {"type": "string", "minLength": 1, "maxLength": 1024}}
"""What a list of globs holds."""

_TYPES = {str: "string", int: "integer", bool: "boolean", Sequence: "array", Mapping: "object"}


def option(description: str, default: Any = MISSING, **declared: Any) -> Any:
    """A field that is a parameter: its name, type and default are the field's, the rest as a ToolParameter takes it."""
    return field(default=default, metadata={"description": description, **declared})


def parameters_of(options: type) -> tuple[ToolParameter, ...]:
    """The parameters that the fields of a dataclass declare."""
    kinds = get_type_hints(options)
    return tuple(_parameter(one, kinds[one.name]) for one in fields(options) if one.metadata)


def _parameter(one: Field[Any], kind: Any) -> ToolParameter:
    if get_origin(kind) in (Union, UnionType):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    is_choice, is_required = get_origin(kind) is Literal, one.default is MISSING
    return ToolParameter(
        name=one.name,
        type="string" if is_choice else _TYPES[get_origin(kind) or kind],
        required=is_required,
        default=None if is_required else one.default,
        enum=list(get_args(kind)) if is_choice else None,
        **one.metadata,
    )


_PATHS = ("file_path", "notebook_path", "file", "path")
"""What parameters are called that name what a tool works on, the closest first."""


class BuiltinTool(BaseTool):
    """A tool that only awaits, or blocks on threads of its own."""

    lane: Lane = "async"

    def _takes_extra(self) -> bool:
        return False  # `**options` only keeps the names from being written twice

    def _presentable(self, failure: ToolResult, parameters: Mapping[str, Any]) -> ToolResult:
        """Name the path that was asked for, where there was one (spec S1-49)."""
        asked, details = self.effective(parameters), failure.error_details
        path = next((asked[name] for name in _PATHS if asked.get(name) is not None), None)
        if path is not None and (details is None or isinstance(details, dict)):
            failure = failure.model_copy(update={"error_details": {**(details or {}), "path": path}})
        return super()._presentable(failure, parameters)


class ReadingTool(BuiltinTool):
    """A tool that changes nothing, so that a dry run is a run."""

    capabilities = Capabilities(idempotent=True, retryable=True)

    async def _dry_run(self, context: ExecutionContext, *args: Any, **options: Any) -> ToolResult:
        result = await self._execute(context, *args, **options)
        if result.success:
            said = result.output
            result.output = ["[Dry Run]", *said] if isinstance(said, list) else f"[Dry Run] {said}"
        return result


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 file`, `2,994 files`, `2 entries`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
