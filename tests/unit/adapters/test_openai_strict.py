"""Schemas for OpenAI's strict mode."""

from datetime import date
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import HttpUrl

from forge_tools.adapters.openai import strict_parameters
from forge_tools.errors import InvalidToolError
from forge_tools.model import ToolParameter
from forge_tools.model.tools import Schema
from forge_tools.tool import tool
from forge_tools.tool.base import BaseTool
from forge_tools.tools import BUILTINS, Bash
from tests.model_servers.rules import check_parameters, check_strict
from tests.spec.sample_tools import Recorder, parameter

INNER: Schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}, "b": {"enum": ["x"]}}}


def strict(*parameters: ToolParameter) -> Any:
    return strict_parameters(Recorder(*parameters).spec)


def test_every_object_is_closed_every_member_required_and_optional_ones_nullable() -> None:
    schema = strict(parameter("name"), parameter("size", "integer", required=False, minimum=1, default=3))

    assert schema == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The name"},
            "size": {"type": ["integer", "null"], "description": "The size (default: 3)", "minimum": 1},
        },
        "required": ["name", "size"],
        "additionalProperties": False,
    }


def test_objects_inside_are_made_strict_too() -> None:
    inner = strict(parameter("rows", "array", items=INNER | {"required": ["a"]}))["properties"]["rows"]["items"]

    assert inner["required"] == ["a", "b"]
    assert inner["additionalProperties"] is False
    assert inner["properties"]["a"] == {"type": "string", "description": "(at least 1 characters)"}
    assert inner["properties"]["b"] == {"enum": ["x", None], "type": ["string", "null"]}


def test_alternatives_and_choices_may_be_null_where_they_are_optional() -> None:
    either = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    parts = strict(
        parameter("mode", required=False, enum=["r", "w"]),
        parameter("of", "object", properties={"either": either, "fixed": {"const": "x"}, "nil": {"type": "null"}}),
    )["properties"]

    assert (parts["mode"]["type"], parts["mode"]["enum"]) == (["string", "null"], ["r", "w", None])
    assert parts["of"]["properties"]["either"]["anyOf"][-1] == {"type": "null"}
    assert parts["of"]["properties"]["fixed"] == {"enum": ["x", None], "type": ["string", "null"]}
    assert parts["of"]["properties"]["nil"] == {"type": "null"}


def test_choices_have_the_types_of_their_values() -> None:
    @tool
    def pick(of: Literal[1, "x", None], flag: Literal[True, 0.5]) -> None:
        """Pick one."""

    parts = strict_parameters(pick.spec)["properties"]

    assert parts["of"] == {"description": "", "enum": [1, "x", None], "type": ["integer", "string", "null"]}
    assert parts["flag"]["type"] == ["boolean", "number"]


def test_formats_that_the_provider_refuses_are_told_instead() -> None:
    @tool
    def fetch(day: date, url: HttpUrl, to: Path = Path("out")) -> None:
        """Fetch it."""

    schema = strict_parameters(fetch.spec)
    check_strict("fetch", schema)

    assert schema["properties"]["day"]["format"] == "date"
    assert schema["properties"]["url"]["description"] == "(at least 1 characters, at most 2083 characters, format: uri)"
    assert schema["properties"]["to"] == {"type": ["string", "null"], "description": "(default: out, format: path)"}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (parameter("x", "object"), "x is an object whose members are not declared"),
        (parameter("x", "array"), "x is an array of anything"),
        (parameter("x", "array", items={}), "x is an array of anything"),
        (parameter("x", "array", items={"description": "any"}), r"x\[\] allows any value"),
        (parameter("x", "object", properties={"y": {"type": "object"}}), r"x\.y is an object"),
        (parameter("x", "array", items=INNER | {"additionalProperties": True}), r"x\[\] allows members"),
        (parameter("x", "array", items={"oneOf": [{"type": "string"}]}), r"x\[\] uses oneOf"),
    ],
)
def test_what_cannot_be_strict_is_refused_by_its_path_with_the_way_out(bad: ToolParameter, said: str) -> None:
    with pytest.raises(InvalidToolError, match=f'Recorder cannot be offered in strict mode: {said}.*strict="auto"'):
        strict(bad)


def test_what_is_nested_too_deeply_is_refused() -> None:
    schema: Schema = {"type": "string"}
    for _ in range(11):
        schema = {"type": "object", "properties": {"in": schema}}

    with pytest.raises(InvalidToolError, match="deeper than 10 levels"):
        strict(parameter("x", "object", properties={"in": schema}))


def test_too_many_properties_are_refused() -> None:
    members = {f"m{number}": {"type": "string"} for number in range(5_000)}

    with pytest.raises(InvalidToolError, match="more than 5,000 properties"):
        strict(parameter("x", "object", properties=members))


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "string", "maxLength": 3, "format": "uri"},
            {"type": "number"},
            {"enum": [1, "a"]},
            {},
            {"type": "null"},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda of: {"type": "array", "items": of}, inner),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda members, required: {"type": "object", "properties": members, "required": required & members.keys()},
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.sets(st.sampled_from("abc")),
        ),
    ),
    max_leaves=8,
)


@given(SCHEMAS, st.booleans())
def test_whatever_is_not_refused_is_what_strict_mode_takes(items: Any, required: bool) -> None:
    spec = Recorder(parameter("x", "array", items=_listed(items), required=required)).spec

    try:
        schema = strict_parameters(spec)
    except InvalidToolError:
        return

    check_parameters(spec.name, schema)
    check_strict(spec.name, schema)


def _listed(value: Any) -> Any:
    """JSON has no sets."""
    if isinstance(value, dict):
        return {key: _listed(part) for key, part in value.items()}
    if isinstance(value, list | set | frozenset):
        return [_listed(part) for part in value]
    return value


@pytest.mark.parametrize("tool", [tool for tool in BUILTINS if tool is not Bash], ids=lambda tool: tool.name)
def test_the_built_in_tools_can_be_strict(tool: type[BaseTool]) -> None:
    schema = strict_parameters(tool().spec)

    check_parameters(tool.name, schema)
    check_strict(tool.name, schema)


def test_an_array_with_a_schema_for_each_place_is_refused() -> None:
    pair = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}  # as until draft 2019-09
    tool = Recorder(input_schema={"type": "object", "properties": {"pair": pair}})

    with pytest.raises(InvalidToolError, match="pair is an array of anything: describe its `items`"):
        strict_parameters(tool.spec)
