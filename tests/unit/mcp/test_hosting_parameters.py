"""Input schemas of servers, as parameters."""

from typing import Any

import pytest

from forge_tools.base import BaseTool, ExecutionContext, ToolCategory, ToolResult
from forge_tools.mcp.hosting.parameters import parameters_of
from forge_tools.schemas import property_schemas


class Bare(BaseTool):
    """Take what a schema says."""

    name = "Bare"
    category = ToolCategory.MCP
    parameters: Any = ()

    def __init__(self, schema: dict[str, Any]) -> None:
        self.parameters = parameters_of(schema)

    async def _execute(self, context: ExecutionContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]  # keywords alone
        return ToolResult.ok(arguments)


def shown(**properties: Any) -> Any:
    document = {"type": "object", "properties": properties, "$defs": DEFINITIONS}
    return property_schemas(Bare(document).spec)


POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
DEFINITIONS = {
    "Point": POINT,
    "Line": {"type": "array", "items": {"$ref": "#/$defs/Point"}, "minItems": 2},
    "Tree": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}},
}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "description": "d", "pattern": "^a+$", "format": "uri", "x-own": 1},
        {"type": ["string", "null"], "description": "d", "default": None},
        {"description": "d", "oneOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]},
        {"type": "object", "description": "d", "additionalProperties": {"type": "integer"}, "minProperties": 1},
        {"type": "array", "description": "d", "prefixItems": [{"type": "string"}], "uniqueItems": True},
        {"description": "d", "const": 3},
    ],
)
def test_a_schema_is_kept_as_it_is(schema: dict[str, Any]) -> None:
    assert shown(p=schema) == {"p": schema}


def test_references_are_written_out() -> None:
    assert shown(line={"$ref": "#/$defs/Line", "description": "of a map"}) == {
        "line": {"type": "array", "description": "of a map", "items": POINT, "minItems": 2}
    }


def test_a_type_that_contains_itself_accepts_everything_where_it_does() -> None:
    tree = shown(tree={"$ref": "#/$defs/Tree"})["tree"]

    assert tree["properties"]["children"]["items"] == {}


@pytest.mark.parametrize("reference", ["#/$defs/None", "https://example.com/schema.json", "#/type", ""])
def test_a_reference_to_nothing_accepts_everything(reference: str) -> None:
    assert shown(p={"$ref": reference})["p"]["description"] == ""


def test_references_that_multiply_end() -> None:
    definitions = {f"L{n}": {"anyOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 10} for n in range(40)}

    (parameter,) = parameters_of({"properties": {"p": {"$ref": "#/$defs/L0"}}, "$defs": definitions})

    assert len(parameter.model_dump_json()) < 2_000_000


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": r"\p{L}+"}, {"minimum": "three"}, {"enum": 3}, True])
def test_what_cannot_be_checked_here_is_left_to_the_server(schema: Any) -> None:
    assert Bare({"properties": {"p": schema}}).validate_params(p="x") == (True, None)


def test_a_default_is_shown_and_left_to_the_server() -> None:
    tool = Bare({"properties": {"p": {"type": "integer", "default": 3}}})

    assert property_schemas(tool.spec)["p"]["default"] == 3
    assert tool.effective({}) == {}


def test_what_is_required_is_required_and_nested_values_are_checked() -> None:
    tool = Bare({"properties": {"p": {"$ref": "#/$defs/Point"}}, "required": ["p"], "$defs": DEFINITIONS})

    assert tool.validate_all({}) == ["Missing required parameter: p"]
    assert tool.validate_all({"p": {"x": "left"}}) == ["Invalid type for p.x: expected number"]


@pytest.mark.parametrize("schema", [{}, {"properties": None}, {"properties": {}, "required": "p"}, {"type": "object"}])
def test_a_schema_without_properties_has_no_parameters(schema: dict[str, Any]) -> None:
    assert parameters_of(schema) == ()


def test_texts_that_no_database_takes_are_made_visible() -> None:
    (parameter,) = parameters_of({"properties": {"p": {"description": "a\0b", "enum": ["\0"]}}})

    assert (parameter.description, parameter.keywords) == ("a\\x00b", {"enum": ["\\x00"]})
