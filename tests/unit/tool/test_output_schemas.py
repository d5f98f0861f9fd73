"""A return annotation is a schema for readers of results, and results are checked against it."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from forge_tools.model import ToolResult
from forge_tools.tool import tool
from forge_tools.tool.base import ExecutionContext


class Model(BaseModel):
    count: int


@dataclass
class Record:
    count: int


class Typed(TypedDict):
    count: int


@pytest.mark.parametrize("kind", [Model, Record, Typed])
def test_a_structure_has_a_schema(kind: Any) -> None:
    def count() -> Any:
        """Count."""

    count.__annotations__["return"] = kind

    schema = tool(count).spec.output_schema

    assert schema is not None
    assert (schema["type"], schema["properties"]["count"]["type"]) == ("object", "integer")


@pytest.mark.parametrize("kind", [str, dict[str, int], list[Model], ToolResult, None, bytes])
def test_other_types_have_none(kind: Any) -> None:
    def count() -> Any:
        """Count."""

    count.__annotations__["return"] = kind

    assert tool(count).spec.output_schema is None


async def test_what_breaks_the_promise_fails_and_says_where() -> None:
    @tool
    async def count() -> Record:
        """Count."""
        return {"count": "many"}

    result = await count.execute(ExecutionContext(working_dir="."))

    assert (result.success, result.error_code) == (False, "UNSTORABLE")
    assert "does not match its annotation: count: Input should be a valid integer" in str(result.error)
