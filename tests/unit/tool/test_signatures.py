"""Annotations as schemas that every provider takes: nothing referred to, nothing that only pydantic knows."""

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from forge_tools.schema.providers import FORMATS, render
from forge_tools.tool import tool
from forge_tools.tool.base import ExecutionContext


class Cat(BaseModel):
    kind: Literal["cat"]
    title: str = Field(title="Its title", description="A property that is called as a keyword is.")


class Dog(BaseModel):
    kind: Literal["dog"]
    friends: "list[Cat]" = []


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Wrapper(BaseModel):
    """Wraps."""

    inner: Dog = Field(description="The one inside.")


def schema_of(annotation: Any, default: Any = ...) -> Any:
    def take(value: Any) -> None:
        """Take it."""

    take.__annotations__["value"] = annotation
    if default is not ...:
        take.__defaults__ = (default,)
    return tool(take).to_anthropic_schema()["input_schema"]["properties"]["value"]


CAT = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["cat"]},
        "title": {"type": "string", "description": "A property that is called as a keyword is."},
    },
    "required": ["kind", "title"],
}
DOG = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["dog"]},
        "friends": {"type": "array", "items": CAT, "default": []},
    },
    "required": ["kind"],
}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (Pet, {"description": "", "anyOf": [CAT, DOG]}),
        (list[Pet], {"type": "array", "description": "", "items": {"anyOf": [CAT, DOG]}}),
        (tuple[int, str, int], {"type": "array", "description": "", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "minItems": 3, "maxItems": 3}),
        (tuple[int, int], {"type": "array", "description": "", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
        (set[str], {"type": "array", "description": "", "items": {"type": "string"}, "uniqueItems": True}),
        (dict[str, list[int]], {"type": "object", "description": "", "additionalProperties": {"type": "array", "items": {"type": "integer"}}}),
        (int | None, {"description": "", "anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal[1, "a"], {"description": "", "enum": [1, "a"]}),
        (Literal["only"], {"type": "string", "description": "", "enum": ["only"]}),
        (Any, {"description": ""}),
        (Path, {"type": "string", "description": "", "format": "path"}),
        (Annotated[float, Field(gt=0, description="A share.")], {"type": "number", "description": "A share.", "exclusiveMinimum": 0}),
        (Annotated[str, Field(pattern="^a")], {"type": "string", "description": "", "pattern": "^a"}),
        (Annotated[list[int], Field(min_length=1)], {"type": "array", "description": "", "items": {"type": "integer"}, "minItems": 1}),
        (Wrapper, {"type": "object", "description": "Wraps.", "properties": {"inner": {**DOG, "description": "The one inside."}}, "required": ["inner"]}),
    ],
    ids=str,
)  # fmt: skip
def test_an_annotation_is_written_out(annotation: Any, schema: Any) -> None:
    assert schema_of(annotation) == schema


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (int | None, {"type": "integer", "description": ""}),
        (int | str | None, {"description": "", "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Cat | None, {**CAT, "description": ""}),
        (Annotated[int, Field(ge=1)] | None, {"type": "integer", "description": "", "minimum": 1}),
        (None, {"type": "null", "description": ""}),
    ],
    ids=str,
)
def test_null_is_left_out_where_it_means_that_nothing_is_given(annotation: Any, schema: Any) -> None:
    assert schema_of(annotation, default=None) == schema


def fragments(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for part in schema.values():
            yield from fragments(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from fragments(part)


@tool
def everything(
    pet: Pet,
    pets: list[Pet],
    pair: tuple[int, str],
    bag: set[int],
    amount: Decimal,
    anything: Any,
    one: Literal["one"],
    table: dict[str, list[Cat]],
    wrapped: Wrapper | None = None,
    loose: list | None = None,
) -> str:
    """Take everything."""
    return f"{pet!r} {pair!r} {amount!r} {bag!r} {table!r}"


@pytest.mark.parametrize("format", FORMATS)
def test_no_provider_meets_a_reference_or_a_list_of_unknown_items(format: str) -> None:
    rendered = render(everything.spec, format)

    for fragment in fragments(rendered):
        assert not fragment.keys() & {"$ref", "$defs", "oneOf", "discriminator", "prefixItems", "const"}
        if format in {"openai", "gemini"} and fragment.get("type") == "array":
            assert "items" in fragment
    if format == "anthropic":
        Draft202012Validator.check_schema(rendered["input_schema"])


def test_what_was_written_out_is_still_what_arrives() -> None:
    values = {
        "pet": {"kind": "dog", "friends": [{"kind": "cat", "title": "Lady"}]},
        "pets": [{"kind": "cat", "title": "Sir"}],
        "pair": [1, "b"],
        "bag": [1, 2],
        "amount": "1.50",
        "anything": {"x": [None]},
        "one": "one",
        "table": {"a": [{"kind": "cat", "title": "X"}]},
    }

    result = asyncio.run(everything.execute(ExecutionContext(working_dir="."), **values))

    assert result.output == (
        "Dog(kind='dog', friends=[Cat(kind='cat', title='Lady')]) (1, 'b') Decimal('1.50') {1, 2} "
        "{'a': [Cat(kind='cat', title='X')]}"
    )
