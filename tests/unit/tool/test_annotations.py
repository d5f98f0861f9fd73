"""Annotations that say more than a type, or are texts themselves."""

import asyncio
import math
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from forge_tools.tool import load_tools, tool
from forge_tools.tool.base import BaseTool, ExecutionContext


class Colour(Enum):
    RED = "red"


def output(function: BaseTool, /, **values: Any) -> Any:
    result = asyncio.run(function.execute(ExecutionContext(working_dir="."), **values))
    assert result.success, result
    return result.output


class Strict(BaseModel, strict=True):
    on: date
    colour: Colour


def test_strict_models_take_what_json_writes() -> None:
    @tool
    def take(strict: Strict, day: Annotated[date, Field(strict=True)] = date(2026, 1, 1)) -> str:
        """Take strict types."""
        return f"{strict.on!r} {strict.colour} {day!r}"

    assert output(take, strict={"on": "2026-01-02", "colour": "red"}, day="2026-01-03") == (
        "datetime.date(2026, 1, 2) Colour.RED datetime.date(2026, 1, 3)"
    )


def test_a_text_among_annotations_describes_the_parameter() -> None:
    @tool
    def say(text: Annotated[str, "What to say."], loud: Annotated[bool | None, "How."] = None) -> str:
        """Say it."""
        return text

    assert [parameter.description for parameter in say.parameters] == ["What to say.", "How."]


POSTPONED = """
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from forge_tools.tool.base import ExecutionContext
from forge_tools.tool import tool

if TYPE_CHECKING:
    from decimal import Decimal


class Place(BaseModel):
    city: str
    near: list[Other] = []


class Other(BaseModel):
    name: str


@tool
async def describe(place: Place, times: Annotated[int, Field(ge=1)], context: ExecutionContext) -> Decimal:
    \"\"\"Describe it.\"\"\"
    return [place.near[0].name, times, context.working_dir]
"""


def test_annotations_may_be_postponed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "postponed_tools.py").write_text(POSTPONED)
    monkeypatch.syspath_prepend(tmp_path)
    [describe] = load_tools(["postponed_tools:describe"], builtins=False, entry_points=False)

    assert [parameter.name for parameter in describe.parameters] == ["place", "times"]
    assert output(describe, place={"city": "Bonn", "near": [{"name": "Rhine"}]}, times=2) == ["Rhine", 2, "."]


def test_types_of_a_function_around_it_are_found() -> None:
    class Local(BaseModel):
        x: int

    @tool
    def take(local: Local, many: "list[Colour]") -> int:
        """Take what is defined right here."""
        return local.x + len(many)

    assert output(take, local={"x": 3}, many=["red"]) == 4


def test_only_what_stands_alone_is_filled_by_the_host() -> None:
    def visit(
        mine: Annotated[ExecutionContext, "Whose call it is."],
        maybe: Annotated[ExecutionContext | None, "The same."],
        others: list[ExecutionContext],
    ) -> list[str]:
        """Visit where others are."""
        assert mine is maybe
        return [mine.working_dir, *(other.working_dir for other in others)]

    visiting = tool(visit)
    result = asyncio.run(visiting.execute(ExecutionContext(working_dir="/srv"), others=[{"working_dir": "/a"}]))

    assert [parameter.name for parameter in visiting.parameters] == ["others"]
    assert result.output == ["/srv", "/a"]


def test_a_factory_makes_a_default_for_each_call() -> None:
    numbers = iter(range(10))

    @tool
    def take(
        number: Annotated[int, Field(default_factory=lambda: next(numbers))],
        many: Annotated[list[int], Field(default_factory=list)],
    ) -> list[int]:
        """Take a number."""
        many.append(number)
        return many

    assert [parameter.default for parameter in take.parameters] == [None, []]
    assert not any(parameter.required for parameter in take.parameters)
    assert [output(take), output(take), output(take, number=7)] == [[0], [1], [7]]


def test_a_default_that_json_cannot_hold_stays_with_the_function() -> None:
    @tool
    def take(most: float = math.inf) -> bool:
        """Take as much."""
        return most == math.inf

    assert take.parameters[0].default is None
    assert (output(take), output(take, most=5.0)) == (True, False)
