"""Validation, with the exact sentences."""

from typing import Any

import pytest

from forge_tools.errors import InvalidToolError
from forge_tools.registry import ScopedRegistry
from tests.spec.sample_tools import Echo, Read, Recorder, parameter

spec = pytest.mark.spec
VALID = (True, None)


def check(value: Any, type: str, **limits: Any) -> tuple[bool, str | None]:
    return Recorder(parameter("value", type, **limits)).validate_params(value=value)


def refused(message: str) -> tuple[bool, str]:
    return False, message


@spec("S0-16", "S3-033", "S3-038")
def test_a_complete_call_is_valid() -> None:
    assert Read().validate_params(file_path="/some/path") == VALID


@spec("S0-17", "S3-039", "S3-040")
def test_a_missing_parameter_is_named() -> None:
    assert Read().validate_params() == refused("Missing required parameter: file_path")


@spec("S0-18..23", "S3-041..046", "S4-26")
@pytest.mark.parametrize(
    ("type", "good", "bad"),
    [
        ("string", ["hello", ""], [123, None, b"x"]),
        ("integer", [42, 0, -1], ["42", 3.14, 3.0, True]),
        ("number", [42, 3.14], ["3.14", False]),
        ("boolean", [True, False], ["true", 1]),
        ("array", [[1, 2, 3], []], ["[1, 2, 3]", {}]),
        ("object", [{"key": "value"}, {}], ["{'key': 'value'}", []]),
        ("null", [None], ["null", 0]),
    ],
)
def test_each_type_takes_its_values_and_names_itself_to_others(type: str, good: list[Any], bad: list[Any]) -> None:
    assert [check(value, type) for value in good] == [VALID] * len(good)
    assert [check(value, type) for value in bad] == [refused(f"Invalid type for value: expected {type}")] * len(bad)


@spec("S0-24", "S3-047")
def test_an_enum_lists_what_it_takes() -> None:
    choices = ["json", "yaml", "toml"]

    assert check("json", "string", enum=choices) == VALID
    message = "Invalid value for value: must be one of ['json', 'yaml', 'toml']"
    assert check("xml", "string", enum=choices) == refused(message)


@spec("S0-25", "S3-048")
def test_the_minimum_itself_is_allowed() -> None:
    assert check(1, "integer", minimum=1) == VALID
    assert check(0, "integer", minimum=1) == refused("Value for value is below minimum: 1")


@spec("S0-26", "S3-048")
def test_the_maximum_itself_is_allowed() -> None:
    assert check(1000, "integer", maximum=1000) == VALID
    assert check(1001, "integer", maximum=1000) == refused("Value for value exceeds maximum: 1000")


@spec("S0-27", "S3-049")
def test_a_short_text_is_refused() -> None:
    assert check("hello", "string", min_length=1) == VALID
    assert check("", "string", min_length=1) == refused("Value for value is shorter than minimum length: 1")


@spec("S0-28", "S3-049", "S4-22")
def test_a_long_text_is_refused() -> None:
    assert check("short", "string", max_length=50) == VALID
    assert check("x" * 51, "string", max_length=50) == refused("Value for value exceeds maximum length: 50")


@spec("S4-25", "S3-049")
def test_a_limit_of_zero_and_an_empty_enum_count() -> None:
    assert check("x", "string", max_length=0) == refused("Value for value exceeds maximum length: 0")
    assert check("x", "string", enum=[]) == refused("Invalid value for value: must be one of []")


@spec("S3-050", "S3-034", "S4-26")
def test_an_unknown_type_takes_anything() -> None:
    assert check(object(), "mystery") == VALID
    is_of_type = Echo()._check_type  # noqa: SLF001  the specification names it
    assert is_of_type(1, "mystery") is True
    assert is_of_type(1, "string") is False
    assert is_of_type((), "array") is False
    assert [is_of_type(value, "integer") for value in (1, True, 1.0)] == [True, False, False]


@spec("S3-051", "S4-24")
def test_an_optional_parameter_may_be_left_out() -> None:
    assert Recorder(parameter("x", required=False, min_length=5)).validate_params() == VALID


@spec("S4-23")
def test_type_comes_before_enum_before_length_and_the_first_parameter_first() -> None:
    tool = Recorder(parameter("a", enum=["long enough"], min_length=5), parameter("b"))

    assert tool.validate_params(a=1) == refused("Invalid type for a: expected string")
    assert tool.validate_params(a="x") == refused("Invalid value for a: must be one of ['long enough']")
    assert tool.validate_params(a="long enough") == refused("Missing required parameter: b")
    assert check(1, "integer", enum=[5], minimum=3) == refused("Invalid value for value: must be one of [5]")


@spec("S1-18")
def test_all_problems_are_listed_on_request() -> None:
    assert Read().validate_all({"offset": "1", "limit": 1.5}) == [
        "Missing required parameter: file_path",
        "Invalid type for offset: expected integer",
        "Invalid type for limit: expected integer",
    ]


@spec("S1-04", "S1-07")
def test_nested_values_are_checked_at_every_depth_with_their_path() -> None:
    edit = {"type": "object", "properties": {"old_string": {"type": "string"}}, "required": ["old_string"]}
    tool = Recorder(parameter("edits", "array", items=edit))

    edits: list[Any] = [{"old_string": "a"}, {"old_string": "b"}, {"old_string": 3}]
    assert tool.validate_params(edits=edits) == refused("Invalid type for edits[2].old_string: expected string")
    assert tool.validate_params(edits=[{}]) == refused("Missing required parameter: edits[0].old_string")


@spec("S3-198")
def test_an_unknown_argument_gets_the_name_that_was_probably_meant() -> None:
    message = "Unknown parameter 'filepath' (did you mean 'file_path'?)"

    assert Read().validate_params(filepath="a") == refused(message)
    assert Recorder(parameter("x", required=False)).validate_params(anything=1) == VALID


@spec("S2-09")
def test_a_definition_is_checked_when_it_is_registered(registry: ScopedRegistry) -> None:
    for tool in (Recorder(name="bad name"), Recorder(description=" "), Recorder(parameter("x"), parameter("x"))):
        with pytest.raises(InvalidToolError):
            registry.register(tool)

    assert registry.count() == 0
