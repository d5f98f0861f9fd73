"""The formats of the providers."""

import copy
from typing import Any

import pytest

from forge_tools.model import Capabilities
from forge_tools.schema.providers import FORMATS, input_schema, render
from tests.spec.sample_tools import Broken, Echo, Recorder, parameter

NESTED = {"type": "object", "properties": {"tags": {"type": "array"}}, "additionalProperties": {"type": "array"}}


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_rendered_belongs_to_the_caller(format: str) -> None:
    tool = Recorder(parameter("x", "array", items=NESTED, default=[[1]]))
    before = copy.deepcopy(tool.spec)

    first = render(tool.spec, format)
    str_before = str(first)
    _spoil(first)

    assert tool.spec == before
    assert str(render(tool.spec, format)) == str_before


def _spoil(schema: Any) -> None:
    for value in list(schema.values()) if isinstance(schema, dict) else schema:
        if isinstance(value, dict | list):
            _spoil(value)
    schema.clear()


def test_aliases_are_never_shown() -> None:
    tool = Recorder(parameter("file_path", aliases=("path",)))

    assert all("'path'" not in str(render(tool.spec, name)) for name in FORMATS)


def test_only_openai_and_ollama_get_items_where_none_were_declared() -> None:
    spec = Recorder(
        parameter("a", "array"),
        parameter("b", "array", items=NESTED),
        parameter("c", "object", properties={"d": {"anyOf": [{"type": ["array", "null"]}]}}),
    ).spec

    openai = render(spec, "openai")["function"]["parameters"]["properties"]

    assert openai["a"]["items"] == {}
    assert openai["b"]["items"]["properties"]["tags"] == {"type": "array", "items": {}}
    assert openai["b"]["items"]["additionalProperties"] == {"type": "array", "items": {}}
    assert openai["c"]["properties"]["d"]["anyOf"] == [{"type": ["array", "null"], "items": {}}]
    assert render(spec, "ollama") == render(spec, "openai")
    assert render(spec, "anthropic")["input_schema"] == input_schema(spec)
    assert "items" not in input_schema(spec)["properties"]["a"]


def test_gemini_gets_the_keywords_it_knows() -> None:
    inner = {
        "type": "object",
        "properties": {
            "maybe": {"type": ["string", "null"]},
            "either": {"type": ["string", "integer", "null"]},
            "fixed": {"type": "string", "const": "a"},
            "level": {"type": "integer", "enum": [1, 2], "exclusiveMinimum": 0},
            "list": {"type": "array"},
        },
        "additionalProperties": False,
    }

    shown = render(Recorder(parameter("x", "array", items=inner)).spec, "gemini")["parameters"]["properties"]["x"][
        "items"
    ]

    assert shown == {
        "type": "object",
        "properties": {
            "maybe": {"type": "string", "nullable": True},
            "either": {"nullable": True, "anyOf": [{"type": "string"}, {"type": "integer"}]},
            "fixed": {"type": "string", "enum": ["a"]},
            "level": {"type": "integer"},
            "list": {"type": "array", "items": {"type": "string"}},
        },
    }


@pytest.mark.parametrize("part", [{}, {"enum": [1, "x"]}, {"anyOf": [{"type": "string"}, {"enum": [1, "x"]}]}])
def test_gemini_gets_a_json_schema_where_a_value_has_no_type_of_its_own(part: dict[str, Any]) -> None:
    spec = Recorder(parameter("x", "array", items={"type": "object", "properties": {"a": part}})).spec
    shown = render(spec, "gemini")

    assert "parameters" not in shown
    assert shown["parametersJsonSchema"] == input_schema(spec)


def test_gemini_gets_no_parameters_where_there_are_none() -> None:
    assert render(Broken().spec, "gemini") == {"name": "Broken", "description": "Raise"}


@pytest.mark.parametrize("format", FORMATS)
def test_schemas_of_others_that_are_true_or_false_become_objects(format: str) -> None:
    closed = {"type": "object", "properties": {"z": True}, "additionalProperties": False}
    properties = {
        "a": True,
        "b": False,
        "c": {"type": "array", "items": True},
        "d": {"anyOf": [closed, True]},
        "e": {"oneOf": [True]},
    }
    spec = Echo().spec.model_copy(update={"input_schema": {"type": "object", "properties": properties}})

    objects = {
        "a": {},
        "b": {"not": {}},
        "c": {"type": "array", "items": {}},
        "d": {"anyOf": [closed | {"properties": {"z": {}}}, {}]},
        "e": {"oneOf": [{}]},
    }
    assert str(objects) in str(render(spec, format))
    assert spec.input_schema == {"type": "object", "properties": properties}


@pytest.mark.parametrize("format", ["openai", "anthropic", "ollama"])
def test_a_schema_of_others_without_properties_is_given_none(format: str) -> None:
    spec = Echo().spec.model_copy(update={"input_schema": {"type": "object"}})

    assert "{'type': 'object', 'properties': {}}" in str(render(spec, format))


def test_mcp_gets_hints_from_the_capabilities() -> None:
    plain = render(Echo().spec, "mcp")
    shell = render(Recorder(capabilities=Capabilities(executes_commands=True, accesses_network=True)).spec, "mcp")

    assert plain["inputSchema"] == render(Echo().spec, "anthropic")["input_schema"]
    assert plain["annotations"] == {
        "readOnlyHint": True,
        "destructiveHint": False,
        "idempotentHint": False,
        "openWorldHint": False,
    }
    assert (shell["annotations"]["destructiveHint"], shell["annotations"]["openWorldHint"]) == (True, True)


def test_an_unknown_format_is_told_which_there_are() -> None:
    with pytest.raises(ValueError, match=r"Unknown schema format: xml\. Use one of openai, anthropic, gemini"):
        render(Echo().spec, "xml")
