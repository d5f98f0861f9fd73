"""Validation, transport and text: the parts that go wrong at the edges."""

import json
from collections import OrderedDict
from enum import Enum, StrEnum
from typing import Any, NamedTuple

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.errors import InvalidCallError, InvalidToolError
from forge_tools.model import ToolCategory, ToolParameter, ToolSpec
from forge_tools.schema import MAX_DEPTH, Validator, clean_text, encode_json

LIMIT = 10_000_000


def spec(*parameters: ToolParameter, extra: bool = False, name: str = "Tool") -> ToolSpec:
    return ToolSpec(name=name, description="d", category=ToolCategory.OTHER, parameters=parameters, extra=extra)


def parameter(name: str, type: str = "string", **rest: Any) -> ToolParameter:
    return ToolParameter(name=name, type=type, description="d", **rest)


def error(value: Any, items: Any) -> str | None:
    return Validator(spec(parameter("x", "array", items=items))).first_error({"x": [value]})


def refusal(value: Any, limit: int = LIMIT, what: str = "parameters") -> str:
    with pytest.raises(InvalidCallError) as caught:
        encode_json(value, what, limit)
    assert caught.value.code == "VALIDATION_ERROR"
    return str(caught.value)


# Parameters


def test_a_validator_is_prepared_once_for_equal_definitions() -> None:
    assert Validator.for_spec(spec(parameter("x"))) is Validator.for_spec(spec(parameter("x")))
    assert Validator.for_spec(spec(parameter("x"))) is not Validator.for_spec(spec(parameter("x", min_length=1)))


def test_an_alias_stands_for_its_parameter_in_checks_and_in_the_call() -> None:
    validator = Validator(spec(parameter("file_path", aliases=("path", "file"))))

    assert validator.first_error({"path": "a"}) is None
    assert validator.first_error({"path": 1}) == "Invalid type for file_path: expected string"
    assert validator.effective({"path": "a"}) == {"file_path": "a"}


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"file_path": "a", "path": "b"}, "'file_path' and 'path'"),
        ({"file": "a", "path": "b"}, "'file' and 'path'"),
        ({"path": "b", "file_path": "a", "file": "c"}, "'file' and 'file_path' and 'path'"),
    ],
)
def test_two_names_of_one_parameter_are_refused_once(given: dict[str, str], same: str) -> None:
    validator = Validator(spec(parameter("file_path", aliases=("path", "file"))))

    assert validator.all_errors(given) == [f"Parameters {same} mean the same. Give only 'file_path'."]


def test_an_alias_given_as_none_does_not_hide_the_parameter() -> None:
    validator = Validator(spec(parameter("file_path", aliases=("path",))))

    assert validator.effective({"file_path": "a", "path": None}) == {"file_path": "a"}
    assert validator.first_error({"path": None, "file_path": "a"}) is None
    assert validator.first_error({"path": None}) == "Missing required parameter: file_path"


def test_none_means_left_out_only_for_optional_parameters_without_null_type() -> None:
    optional, null = parameter("a", required=False, default="d"), parameter("b", "null", required=False)
    validator = Validator(spec(optional, null, parameter("c")))

    assert validator.effective({"a": None, "b": None, "c": "x"}) == {"a": "d", "b": None, "c": "x"}
    assert validator.first_error({"c": None}) == "Invalid type for c: expected string"


def test_a_default_is_copied_for_every_call() -> None:
    validator = Validator(spec(parameter("x", "array", required=False, default=[{"a": 1}])))

    validator.effective({})["x"][0]["a"] = 2

    assert validator.effective({}) == {"x": [{"a": 1}]}


def test_unknown_names_are_cut_and_made_printable() -> None:
    message = Validator(spec(parameter("x", required=False))).first_error({"\x00\ud800" + "n" * 1000: 1})

    assert message is not None
    assert message.startswith(r"Unknown parameter '\x00\ud800nnn")
    assert len(message) < 120


def test_extra_arguments_pass_where_the_tool_takes_them() -> None:
    validator = Validator(spec(parameter("x", aliases=("y",)), extra=True))

    assert validator.first_error({"x": "a", "anything": object()}) is None
    assert validator.effective({"y": "a", "other": None}) == {"x": "a", "other": None}


def test_problems_are_listed_up_to_a_limit() -> None:
    validator = Validator(spec(parameter("x", "array", items={"type": "string"})))

    assert len(validator.all_errors({"x": list(range(100_000))})) == 50


# JSON Schema


EDIT = {
    "type": "object",
    "properties": {"old_string": {"type": "string", "minLength": 1}, "count": {"type": ["integer", "null"]}},
    "required": ["old_string"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"old_string": "a", "count": None}, None),
        ({"old_string": ""}, "Value for x[0].old_string is shorter than minimum length: 1"),
        ({"old_string": "a", "count": "1"}, "Invalid type for x[0].count: expected integer or null"),
        ({"old_string": "a", "old": 1}, "Unknown parameter 'x[0].old'"),
        ({"old_string": "a", "cont": 1}, "Unknown parameter 'x[0].cont' (did you mean 'count'?)"),
        ({}, "Missing required parameter: x[0].old_string"),
        ("edit", "Invalid type for x[0]: expected object"),
    ],
)
def test_objects_inside_arrays_are_checked(value: Any, message: str | None) -> None:
    assert error(value, EDIT) == message


@pytest.mark.parametrize(
    ("schema", "good", "bad", "message"),
    [
        ({"minimum": 1}, 1, 0, "Value for x[0] is below minimum: 1"),
        ({"maximum": 1}, 1, 2, "Value for x[0] exceeds maximum: 1"),
        ({"maximum": 1}, "not a number", float("nan"), "Value for x[0] exceeds maximum: 1"),
        ({"exclusiveMinimum": 1}, 2, 1, "Value for x[0] must be greater than: 1"),
        ({"exclusiveMaximum": 1}, 0, 1, "Value for x[0] must be less than: 1"),
        ({"minItems": 1}, [0], [], "Value for x[0] has fewer items than minimum: 1"),
        ({"maxItems": 1}, (0,), [0, 0], "Value for x[0] has more items than maximum: 1"),
        ({"minItems": 1}, "no list", [], "Value for x[0] has fewer items than minimum: 1"),
        ({"maxLength": 1}, 12345, "ab", "Value for x[0] exceeds maximum length: 1"),
        ({"pattern": "^a+$"}, "aa", "ab", "Value for x[0] does not match pattern: ^a+$"),
        ({"pattern": "^a+$"}, 5, "b", "Value for x[0] does not match pattern: ^a+$"),
        ({"enum": [1, "a"]}, 1, True, "Invalid value for x[0]: must be one of [1, 'a']"),
        ({"const": "a"}, "a", "b", "Invalid value for x[0]: must be one of ['a']"),
        ({"properties": {"a": {"type": "null"}}}, "no object", {"a": 1}, "Invalid type for x[0].a: expected null"),
        ({"items": {"type": "null"}}, "no array", [None, 1], "Invalid type for x[0][1]: expected null"),
        (
            {"additionalProperties": {"type": "string"}},
            {"k": "v"},
            {"k": 1},
            "Invalid type for x[0].k: expected string",
        ),
    ],
)
def test_each_keyword_holds_for_the_values_it_is_about(schema: Any, good: Any, bad: Any, message: str) -> None:
    assert error(good, schema) is None
    assert error(bad, schema) == message


def test_one_fitting_alternative_is_enough() -> None:
    either = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["id"]}]}

    assert error("a", either) is None
    assert error({"id": 1}, either) is None
    assert error({}, either) == (
        "Invalid value for x[0]: it matches none of the 2 allowed forms "
        "(Invalid type for x[0]: expected string; Missing required parameter: x[0].id)"
    )


LEAF_SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "number", "boolean", "null", ["string", "null"]]),
        "enum": st.lists(st.sampled_from(["a", 1, 2, True, None]), min_size=1, max_size=3),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "minimum": st.integers(-1, 1),
        "exclusiveMaximum": st.integers(-1, 1),
        "pattern": st.sampled_from(["^a", "b$", "."]),
    },
)
SCHEMAS = st.recursive(
    LEAF_SCHEMAS,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["array", "object", ["array", "object"]]),
            "items": inner,
            "minItems": st.integers(0, 2),
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "required": st.lists(st.sampled_from("ab"), unique=True),
            "additionalProperties": st.booleans() | inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=6,
)
SMALL_VALUES = st.recursive(
    st.sampled_from(["", "a", "ab", "abc", -1, 0, 1, 2, 0.5, True, False, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(SCHEMAS, SMALL_VALUES)
def test_the_verdict_is_that_of_the_reference_implementation(schema: dict[str, Any], value: Any) -> None:
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)

    assert (error(value, schema) is None) == expected


@pytest.mark.parametrize("more", [{}, {"type": "string"}])
def test_a_pattern_takes_time_for_the_length_of_a_text_alone(more: dict[str, Any]) -> None:
    """Python's own search would take for ever."""
    checked = Validator(spec(parameter("x", "array", items={"pattern": "^(a+)+$"} | more)))

    found = checked.first_error({"x": ["a" * 50_000 + "b"]})

    assert "does not match pattern" in str(found)


ENDLESS: dict[str, Any] = {"type": "array"}
ENDLESS["items"] = ENDLESS


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"pattern": "("}, "pattern '(' does not compile"),
        ({"pattern": 5}, "pattern 5 does not compile"),
        (
            {"pattern": "(?=a)b"},
            "does not compile: look-around, including look-ahead and look-behind, is not supported",
        ),
        ({"minimum": "1"}, "minimum must be a number, not str"),
        ({"enum": "abc"}, "enum must be a list, not str"),
        ({"type": 5}, "type must be a list, not int"),
        ({"properties": []}, "properties must be an object, not list"),
        ({"items": [1]}, "a schema must be an object, not list"),
        (ENDLESS, "nested deeper than 100 levels, or contains itself"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused_with_its_parameter(schema: Any, reason: str) -> None:
    with pytest.raises(InvalidToolError, match="parameter 'x'") as caught:
        Validator(spec(parameter("x", "array", items=schema)))

    assert reason in str(caught.value)


# JSON that travels

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_what_json_can_carry_comes_back_equal(value: Any) -> None:
    text = encode_json(value, "parameters", LIMIT)

    assert text.isascii()
    assert json.loads(text) == value


def test_nul_and_lone_surrogates_survive() -> None:
    value = {"\x00": "\ud800 \x00 é"}

    assert json.loads(encode_json(value, "parameters", LIMIT)) == value


class Pair(NamedTuple):
    a: int
    b: int


class Colour(StrEnum):
    RED = "red"


def test_tuples_are_arrays_and_subclasses_of_json_types_pass() -> None:
    value = OrderedDict({"t": (1, (2,)), "p": Pair(1, 2), Colour.RED: Colour.RED})

    assert encode_json(value, "parameters", LIMIT) == '{"t":[1,[2]],"p":[1,2],"red":"red"}'


class Live:
    pass


class Plain(Enum):
    A = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "parameters.items[3]: NaN cannot be represented in JSON. Send null or a string."),
        (float("-inf"), "parameters.items[3]: Infinity cannot be represented in JSON. Send null or a string."),
        (b"x", "parameters.items[3]: bytes cannot be represented in JSON. Send text, base64, or the path of a file."),
        ({1}, "parameters.items[3]: a set cannot be represented in JSON. Send a list."),
        (Live(), "parameters.items[3]: an object of type Live cannot be represented in JSON. Send its text or its fields."),
        (Plain.A, "parameters.items[3]: an object of type Plain cannot be represented in JSON. Send its text or its fields."),
        ({1: "a"}, "parameters.items[3]: the key 1 is not a string. Use string keys."),
        ({b"k": "a"}, "parameters.items[3]: the key b'k' is not a string. Use string keys."),
        ({None: "a"}, "parameters.items[3]: the key None is not a string. Use string keys."),
        pytest.param(
            10**5000, "parameters.items[3]: the integer is too long for JSON. Send a string.", id="long integer"
        ),
        ({"a\x00": [b""]}, r"parameters.items[3].a\x00[0]: bytes cannot be represented in JSON. "
                            "Send text, base64, or the path of a file."),
    ],
)  # fmt: skip
def test_what_json_cannot_carry_is_named_with_its_path(value: Any, message: str) -> None:
    assert refusal({"items": [0, "a", {}, value]}) == message


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def cycle(branches: int) -> Any:
    value: list[Any] = []
    value.extend([value] * branches)
    return value


def test_nesting_is_allowed_up_to_the_limit() -> None:
    assert encode_json(nested(MAX_DEPTH), "parameters", LIMIT) == "[" * MAX_DEPTH + "]" * MAX_DEPTH


@pytest.mark.parametrize("value", [nested(MAX_DEPTH + 1), nested(10_000), cycle(1), {"a": cycle(1)}])
def test_deep_and_endless_values_are_refused(value: Any) -> None:
    assert "nested deeper than 100 levels, or contains itself" in refusal(value)


def test_values_that_share_their_parts_cannot_fill_the_memory() -> None:
    bomb: Any = "x" * 1000
    for _ in range(30):
        bomb = [bomb] * 10

    assert "the limit is 100,000" in refusal(bomb, 100_000)
    assert "the limit is 100,000" in refusal(cycle(2), 100_000)


def test_a_large_value_is_told_its_size_the_limit_and_the_way_out() -> None:
    message = refusal({"data": "x" * 104_857_600})

    assert message == (
        "parameters are at least 104,857,611 bytes; the limit is 10,000,000. "
        "Write the data to a file and pass its path, or raise FORGE_MAX_PARAMETER_BYTES."
    )


def test_the_exact_size_counts() -> None:
    assert encode_json({"a": "é"}, "parameters", 14) == '{"a":"\\u00e9"}'
    assert refusal({"a": "é"}, 13).startswith("parameters are 14 bytes; the limit is 13.")
    assert "FORGE_MAX_OUTPUT_BYTES" in refusal("xx", 1, "output")
    assert refusal("xx", 1, "context").startswith("context is at least 4 bytes")


def test_the_way_out_is_the_setting_of_what_is_too_large_or_none() -> None:
    for part in ("parameters", "context.metadata"):
        assert refusal("xx", 1, part).endswith("or raise FORGE_MAX_PARAMETER_BYTES.")
    for part in ("output", "metadata", "error_details"):
        assert refusal("xx", 1, part).endswith("or raise FORGE_MAX_OUTPUT_BYTES.")
    assert refusal("xx", 1, "its input schema").endswith("the limit is 1. Make it smaller.")


def test_the_lower_bound_of_the_size_is_never_above_the_size() -> None:
    for value in ({}, [], "", {"a": []}, [[], {}, ""], {"": {"": [None, True]}}, 1, None):
        text = encode_json(value, "parameters", LIMIT)
        assert encode_json(value, "parameters", len(text)) == text


# Text


def test_clean_text_escapes_what_cannot_be_stored_or_printed() -> None:
    assert clean_text("a\tb\nc é 漢 \U0001f600") == "a\tb\nc é 漢 \U0001f600"
    assert clean_text("\x00\x1b[31m\r\x7f\x9b\ud800\udfff") == r"\x00\x1b[31m\x0d\x7f\x9b\ud800\udfff"


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_clean_text_is_encodable_and_stable(text: str) -> None:
    cleaned = clean_text(text)

    assert "\x00" not in cleaned
    cleaned.encode()
    assert clean_text(cleaned) == cleaned
