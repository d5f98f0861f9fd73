"""Whole schemas of others: carried as they are, checked by both sides, refused where they have no bounds."""

import json
import subprocess
import sys
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from forge_tools.errors import InvalidToolError
from forge_tools.model import ToolSpec
from forge_tools.schema import Validator
from forge_tools.schema.providers import FORMATS, input_schema, render
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolResult
from forge_tools.tool.registry import check_definition

POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False}
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}
WHOLE: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "point": {"$ref": "#/$defs/Point"},
        "tree": {"$ref": "#/$defs/Tree"},
        "note": {"type": ["string", "null"]},
        "mail": {"type": "string", "format": "email"},
    },
    "patternProperties": {"^x-": {"type": "integer"}},
    "additionalProperties": False,
    "oneOf": [{"required": ["point"]}, {"required": ["tree"]}],
    "dependentRequired": {"note": ["mail"]},
    "$defs": {"Point": POINT, "Tree": TREE},
}


class Foreign(BaseTool):
    """Take what a schema says."""

    name = "Foreign"
    category = ToolCategory.MCP
    parameters: Any = ()

    def __init__(self, schema: dict[str, Any]) -> None:
        self.input_schema = schema

    async def _execute(self, context: ExecutionContext, /, **arguments: Any) -> ToolResult:
        return ToolResult.ok(arguments)


def problems(schema: dict[str, Any], **arguments: Any) -> list[str]:
    return Foreign(schema).validate_all(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"point": {"x": 1}},
        {"point": {"x": "1"}},
        {"point": {"x": 1, "y": 2}},
        {"tree": {"children": [{"children": []}]}, "x-depth": 3},
        {"tree": {"children": [{"children": [3]}]}},
        {"tree": {}, "x-depth": "3"},
        {"tree": {}, "point": {"x": 1}},
        {"point": {"x": 1}, "note": None, "mail": "no address"},
        {"point": {"x": 1}, "note": None},
        {"point": {"x": 1}, "other": 1},
        {},
    ],
    ids=json.dumps,
)
def test_every_keyword_counts_as_it_does_for_others(arguments: dict[str, Any]) -> None:
    expected = Draft202012Validator(WHOLE).is_valid(arguments)

    assert (problems(WHOLE, **arguments) == []) is expected
    assert (Validator.for_spec(Foreign(WHOLE).spec).first_error(arguments) is None) is expected


def test_problems_name_the_place() -> None:
    schema = {"type": "object", "properties": {"p": POINT, "l": {"items": {"type": "string"}}}, "required": ["p", "q"]}
    assert set(problems(schema, p={"y": 1}, l=["a", 3])) == {
        "Missing required parameter: q",
        "Missing required parameter: p.x",
        "Unknown parameter 'p.y'",
        'Invalid value for l[1]: it is not of type "string"',
    }
    (neither,) = problems({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})
    assert "(Missing required parameter: a; Missing required parameter: b)" in neither


def test_a_problem_quotes_no_value() -> None:
    assert "hunter2" not in str(problems({"properties": {"password": {"pattern": "^x"}}}, password="hunter2"))


async def test_an_explicit_null_reaches_the_tool_and_no_default_is_filled_in() -> None:
    tool = Foreign({"type": "object", "properties": {"a": {"type": ["null", "string"]}, "b": {"default": 3}}})

    result = await tool.execute(ExecutionContext(working_dir="."), a=None)

    assert result.output == {"a": None}


def test_formats_are_not_asserted_in_any_draft() -> None:
    schema = {"properties": {"mail": {"type": "string", "format": "email"}}}
    for draft in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"):
        assert problems({"$schema": draft, **schema}, mail="no address") == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            {"$ref": "https://example.com/x.json"},
            "refers to https://example.com/x.json, and references are not fetched",
        ),
        ({"properties": {"p": {"$ref": "other.json#/x"}}}, "refers to other.json#/x, and references are not fetched"),
        ({"properties": {"p": {"$ref": "#/$defs/None"}}}, "refers to #/$defs/None, which is not in it"),
        ({"properties": {"p": {"type": "objekt"}}}, "at properties.p.type cannot be used"),
        ({"properties": {"p": {"pattern": "["}}}, "at properties.p.pattern cannot be used"),
        ({"$schema": "https://example.com/draft"}, "Unknown meta-schema"),
        ({"$defs": {"a": {"$id": "https://example.com/a"}}}, "contains another document, https://example.com/a"),
        (json.loads('{"properties": {"p": ' * 60 + "{}" + "}}" * 60), "nested deeper than 100 levels"),
        ({"description": "x" * 1_000_001}, "1,000,"),
        (
            {
                "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(200)} | {"d200": {}},
                "$ref": "#/$defs/d0",
            },
            "follows more than 100 references in a row",
        ),
        (
            {
                "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}},
                "properties": {"p": {"$ref": "#/$defs/d0"}},
            },
            "applies more than 5,000 schemas to one value",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidToolError) as refused:
        check_definition(Foreign(schema))

    assert said in refused.value.message


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"type": "object"}, {"$ref": "#"}]},
        {
            "$id": "https://example.com/s",
            "properties": {"p": {"$ref": "https://example.com/s#/$defs/a"}},
            "$defs": {"a": {}},
        },
        {"properties": {"p": {"$ref": "#here"}}, "$defs": {"a": {"$anchor": "here", "type": "integer"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"$id": "#a"}}, "$ref": "#a"},
        {"properties": {"default": {"const": {"$ref": "https://example.com"}}, "allOf": {"type": "string"}}},
        {"$dynamicAnchor": "n", "properties": {"p": {"$dynamicRef": "#n"}}},
        {},
    ],
    ids=json.dumps,
)
def test_references_within_are_followed(schema: dict[str, Any]) -> None:
    check_definition(Foreign(schema))

    assert problems(schema) == []


def test_every_format_shows_a_model_what_it_takes() -> None:
    spec = Foreign(WHOLE).spec
    for name in FORMATS:
        assert "Point" in json.dumps(render(spec, name))
    assert render(spec, "mcp")["inputSchema"] == input_schema(spec) == WHOLE
    assert render(spec, "gemini")["parametersJsonSchema"] == WHOLE


def test_alternatives_at_the_top_are_shown_as_members_where_providers_refuse_them() -> None:
    schema = {"oneOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {}}}], "properties": {"c": {}}}

    shown = render(Foreign(schema).spec, "anthropic")["input_schema"]

    assert shown == {"type": "object", "properties": {"a": {"type": "string"}, "b": {}, "c": {}}}


def test_what_has_the_name_of_a_secret_is_one() -> None:
    spec = Foreign({"properties": {"api_key": {"type": "string"}, "token": {"type": "boolean"}, "q": {}}}).spec

    assert spec.hidden({"api_key": "a", "q": 1}) == ["api_key"]
    assert "token" not in spec.hidden({"token": True})


def test_a_definition_survives_the_catalogue() -> None:
    spec = Foreign(WHOLE).spec

    again = ToolSpec.model_validate(json.loads(json.dumps(spec.model_dump(mode="json"))))

    assert (again, again.digest) == (spec, spec.digest)


def test_nothing_is_loaded_for_schemas_of_our_own() -> None:
    program = "import sys, forge_tools.client, forge_tools.tools; assert 'jsonschema_rs' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
