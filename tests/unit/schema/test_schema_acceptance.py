"""Quick answers equal those of the full checks, for any schema and value."""

from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tools.model import ToolCategory, ToolParameter, ToolSpec
from forge_tools.schema import Validator
from forge_tools.schema.schema import Accept, compile_acceptance

JSON_TYPES = ["string", "integer", "number", "boolean", "null", "array", "object"]


def validator(*parameters: ToolParameter, extra: bool = False) -> Validator:
    return Validator(
        ToolSpec(name="Tool", description="d", category=ToolCategory.OTHER, parameters=parameters, extra=extra)
    )


def parameter(name: str, type: str = "string", **rest: Any) -> ToolParameter:
    return ToolParameter(name=name, type=type, description="d", **rest)


def of_items(items: Any) -> tuple[ToolParameter, ToolParameter]:
    return parameter("x", "array", items=items), parameter("y", required=False)


def quick(*parameters: ToolParameter, extra: bool = False) -> Accept:
    """The quick answer by itself, as a validator of these parameters prepares it."""
    return compile_acceptance(*whole(*parameters, extra=extra))


def whole(*parameters: ToolParameter, extra: bool = False) -> tuple[dict[str, Any], set[str]]:
    """The schema of the arguments, and the parameters of which None counts as absent."""
    required = [one.name for one in parameters if one.required]
    schema = {"properties": {one.name: one.to_json_schema() for one in parameters}, "required": required}
    droppable = {one.name for one in parameters if not one.required and one.type != "null"}
    return {**schema, "additionalProperties": extra}, droppable


def test_a_validator_believes_the_quick_answer_of_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[dict[str, Any], set[str]]] = []

    def compile_and_note(*given: Any) -> Accept:
        asked.append(given)
        return lambda values: values["x"] == ["quick"]

    monkeypatch.setattr("forge_tools.schema.parameters.compile_acceptance", compile_and_note)
    parameters = of_items({"type": "integer"})
    checks = validator(*parameters)

    assert [checks.first_error({"x": [value]}) is None for value in ("quick", "slow", 1)] == [True, False, True]
    assert (checks.all_errors({"x": ["quick"]}), asked) == ([], [whole(*parameters)])


@pytest.mark.parametrize(("limit", "value"), [("maximum", 2**53 + 1), ("minimum", -(2**53) - 1)])
def test_integers_that_floats_cannot_tell_from_a_limit_are_compared_exactly(limit: str, value: int) -> None:
    nearest = 2**53 if limit == "maximum" else -(2**53)
    schema = {"properties": {"x": {"type": "number", limit: nearest}}, "additionalProperties": False}

    assert [compile_acceptance(schema)({"x": one}) for one in (nearest, value)] == [True, False]


def is_fine(checks: Validator, given: dict[str, Any]) -> bool:
    """What the checks that explain say, without a quick answer."""
    return checks.first_error(MappingProxyType(given)) is None


SCALARS = ["", "a", "ab", "abc", -1, 0, 1, 2, 0.5, True, False, None]
TYPES = st.sampled_from(JSON_TYPES) | st.lists(st.sampled_from(JSON_TYPES), min_size=1, max_size=3, unique=True)
CHOICES = st.lists(st.sampled_from(["a", "", 1, 1.0, 2, True, None, [], ["a"]]), min_size=1, max_size=3)
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES,
        "enum": CHOICES,
        "const": st.sampled_from(["a", 1, False, None]),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "minimum": st.integers(-1, 1),
        "maximum": st.floats(-1, 1),
        "exclusiveMinimum": st.integers(-1, 1),
        "exclusiveMaximum": st.integers(-1, 1),
        "pattern": st.sampled_from(["^a", "b$", "."]),
    },
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.fixed_dictionaries(
        {"type": st.sampled_from(["array", "object", ["array", "object"], ["null", "object"], ["array", "null"]])},
        optional={
            "items": inner,
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "required": st.lists(st.sampled_from("ab"), unique=True),
            "additionalProperties": st.booleans() | inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=6,
)
PLAIN_VALUES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=400)
@given(SCHEMAS, PLAIN_VALUES)
def test_what_is_accepted_has_no_problem(schema: dict[str, Any], value: Any) -> None:
    parameters, arguments = of_items(schema), {"x": [value]}
    checks = validator(*parameters)

    assert is_fine(checks, arguments) or not quick(*parameters)(arguments)
    assert (checks.first_error(arguments) is None) == is_fine(checks, arguments)


SIMPLE_SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "string", "minLength": 1, "maxLength": 2},
            {"type": "string", "pattern": "b"},
            {"type": "string", "enum": ["a", "ab"]},
            {"type": ["integer", "null"], "minimum": 0},
            {"type": ["string", "null"], "enum": ["a"]},
            {"type": "number", "exclusiveMaximum": 2, "exclusiveMinimum": 0},
            {"type": "number", "maximum": 1, "enum": [1, 2]},
            {"type": "boolean"},
            {"anyOf": [{"type": "null"}, {"const": "a"}]},
            {},
        ]
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner, "minItems": st.just(1), "maxItems": st.just(2)}
        ),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("ab"), inner)},
            optional={"required": st.just(["a"]), "additionalProperties": st.booleans() | inner},
        ),
    ),
    max_leaves=3,
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    """A schema, and a value of its shape: values of any shape hardly ever fit."""
    schema = draw(SIMPLE_SCHEMAS)
    return schema, draw(shaped(schema))


def shaped(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "items" in schema:
        return st.lists(shaped(schema["items"]), max_size=3)
    if "properties" in schema:
        known = {name: shaped(part) for name, part in schema["properties"].items()}
        return st.fixed_dictionaries({}, optional={"a": st.just("a"), "c": st.just("a"), **known})
    return st.sampled_from(SCALARS)


@settings(max_examples=600)
@given(calls())
def test_plain_values_without_a_problem_are_accepted_and_no_others(call: tuple[dict[str, Any], Any]) -> None:
    schema, value = call
    parameters, arguments = of_items(schema), {"x": [value]}

    assert quick(*parameters)(arguments) == is_fine(validator(*parameters), arguments)


class Text(str):
    """Compares as it likes."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparison")


NAN = float("nan")
ODD_VALUES = st.sampled_from(
    [
        NAN,
        float("inf"),
        10**5000,
        (),
        ("a",),
        OrderedDict(a="a"),
        [OrderedDict(a="a")],
        b"a",
        {1: "a"},
        Text("a"),
    ]
)
ODD_SCHEMAS = st.sampled_from(
    [{"enum": [NAN, 1], "type": "number"}, {"type": ["x", "y"]}, {"maximum": 10**400, "type": "number"}]
)


@given(SIMPLE_SCHEMAS | ODD_SCHEMAS, ODD_VALUES)
def test_odd_values_are_accepted_only_if_the_checks_do(schema: dict[str, Any], value: Any) -> None:
    parameters, arguments = of_items(schema), {"x": [value]}

    assert not quick(*parameters)(arguments) or is_fine(validator(*parameters), arguments)


@pytest.mark.parametrize("aliases", [(), ("alias",), ("b",)])
@given(
    st.booleans(),
    st.booleans(),
    st.sampled_from(["string", "null", "anything"]),
    st.dictionaries(st.sampled_from(["a", "b", "c", "alias", "other"]), st.sampled_from(["", "a", 1, None])),
)
def test_names_are_accepted_only_if_the_checks_do(
    aliases: tuple[str, ...], extra: bool, required: bool, type: str, arguments: dict[str, Any]
) -> None:
    named = parameter("a", type, required=required, aliases=aliases), parameter("b", required=False)
    checks = validator(*named, extra=extra)
    fine = is_fine(checks, arguments)

    assert aliases or quick(*named, extra=extra)(arguments) == fine
    assert (checks.first_error(arguments) is None) == fine == (not checks.all_errors(arguments))


def test_deep_schemas_are_answered_too() -> None:
    schema: dict[str, Any] = {"type": ["integer", "null"]}
    right: Any = 1
    wrong: Any = "1"
    for level in range(95):
        if level % 2:
            schema = {"type": ["object", "null"], "properties": {"a": schema}, "additionalProperties": False}
            right, wrong = {"a": right}, {"a": wrong}
        else:
            schema, right, wrong = {"type": ["array", "null"], "items": schema}, [right], [wrong]
    parameters = of_items(schema)
    accepts, checks = quick(*parameters), validator(*parameters)

    assert (accepts({"x": [right]}), checks.first_error({"x": [right]})) == (True, None)
    assert not accepts({"x": [wrong]})
    assert checks.first_error({"x": [wrong]})


def test_a_tool_of_very_many_parameters_is_answered_too() -> None:
    names = [f"p{number}" for number in range(1_050)]
    parameters = [parameter(name, max_length=3) for name in names]
    checks, right = validator(*parameters), dict.fromkeys(names, "abc")

    assert quick(*parameters)(right)
    assert checks.all_errors(right | {names[-1]: "abcd"}) == [f"Value for {names[-1]} exceeds maximum length: 3"]


def test_a_name_that_is_no_text_is_answered_too() -> None:
    inner = {"type": "object", "properties": {"\ud800": {"type": "string"}}}
    checks = validator(parameter("x", "object", properties=inner["properties"]))

    assert checks.first_error({"x": {"\ud800": "a"}}) is None
    assert checks.first_error({"x": {"\ud800": 1}})
