"""A typed function is a tool: what is derived from it, how it is called, and what is refused."""

import asyncio
import functools
import gc
import inspect
import json
import pickle
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr, field_validator

from forge_tools.errors import ErrorCode, ToolError
from forge_tools.model import RetryPolicy
from forge_tools.tool import FunctionTool, load_tools, tool
from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.waiting import reached

CONTEXT = ExecutionContext(working_dir="/srv")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    """Somewhere on earth."""

    city: str
    zip: str | None = None
    colours: list[Colour] = [Colour.RED]

    @field_validator("city")
    @classmethod
    def _exists(cls, value: str) -> str:
        if value == "Atlantis":
            raise ValueError("is under water")
        return value


@dataclass
class Point:
    x: int
    y: int = 0


ONE = Point(1)


@tool
def describe(
    place: Place,
    times: Annotated[int, Field(ge=1, le=9)] = 1,
    mode: Literal["short", "long"] = "short",
    *,
    colour: Colour = Colour.BLUE,
    on: date | None = None,
    weights: dict[str, float] | None = None,
    point: Point = ONE,
) -> str:
    """Describe a place.

    Args:
        place: Which one.
        times: How often.
    """
    return f"{place!r} {times} {mode} {colour} {on!r} {weights} {point}"


@tool
async def whoami(context: ExecutionContext, prefix: str = "") -> str:
    """Tell who calls."""
    return f"{prefix}{context.agent_id} in {threading.current_thread().name}"


def call(function: BaseTool, /, **values: Any) -> ToolResult:
    return asyncio.run(function.execute(CONTEXT.model_copy(update={"agent_id": "agent-1"}), **values))


def output(function: BaseTool, /, **values: Any) -> Any:
    result = call(function, **values)
    assert result.success, result
    return result.output


# What is read off a function.


def test_name_description_and_lane_come_from_the_function() -> None:
    assert (describe.spec.name, describe.spec.description) == ("describe", "Describe a place.")
    assert (describe.spec.lane, whoami.spec.lane) == ("process", "async")
    assert (describe.spec.category, describe.spec.version) == (ToolCategory.OTHER, "1.0.0")


def test_everything_else_is_told_to_the_decorator() -> None:
    @tool(
        name="Search",
        description="Look something up.",
        category=ToolCategory.WEB,
        version="2.1.0",
        tags=["net"],
        aliases=("search",),
        timeout=5,
        max_attempts=4,
        retry=RetryPolicy(max_attempts=4, delay_seconds=1),
        capabilities=Capabilities(accesses_network=True),
        sensitive=["key"],
        lane="process",
    )
    async def anything(query: str, key: str) -> str:
        return query + key

    spec = anything.spec
    assert (spec.name, spec.description, spec.category, spec.version) == (
        "Search",
        "Look something up.",
        "web",
        "2.1.0",
    )
    assert (spec.tags, spec.aliases, spec.timeout, spec.attempts, spec.lane) == (("net",), ("search",), 5, 4, "process")
    assert spec.capabilities.accesses_network
    assert spec.sensitive == {"key"}


def test_parameters_come_from_the_signature() -> None:
    schema = describe.to_openai_schema()["function"]["parameters"]
    properties = schema["properties"]

    assert schema["required"] == ["place"]
    assert list(properties) == ["place", "times", "mode", "colour", "on", "weights", "point"]
    assert properties["place"] == {
        "type": "object",
        "description": "Which one.",
        "properties": {
            "city": {"type": "string"},
            "zip": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "colours": {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}, "default": ["red"]},
        },
        "required": ["city"],
    }
    assert properties["times"] == {
        "type": "integer", "description": "How often.", "default": 1, "minimum": 1, "maximum": 9
    }  # fmt: skip
    assert properties["mode"]["enum"] == ["short", "long"]
    assert properties["colour"] == {"type": "string", "description": "", "default": "blue", "enum": ["red", "blue"]}
    assert properties["on"] == {"type": "string", "description": "", "format": "date"}
    assert properties["weights"]["additionalProperties"] == {"type": "number"}
    assert properties["point"]["default"] == {"x": 1, "y": 0}
    json.dumps(schema)


def test_the_context_is_injected_and_hidden() -> None:
    assert [parameter.name for parameter in whoami.parameters] == ["prefix"]
    assert output(whoami, prefix="I am ") == "I am agent-1 in MainThread"

    @tool
    def optional(who: ExecutionContext | None = None) -> str:
        """Tell where."""
        return who.working_dir if who else "nowhere"

    assert output(optional) == "/srv"
    assert optional() == "nowhere"


def test_a_parameter_may_be_called_as_the_runtime_calls_its_own() -> None:
    @tool
    def odd(context: str, name: str, values: int, copy: bool, function: str, given: str) -> list[Any]:
        """Take odd names."""
        return [context, name, values, copy, function, given]

    values: dict[str, Any] = {"context": "c", "name": "n", "values": 1, "copy": True, "function": "f", "given": "g"}
    assert output(odd, **values) == list(values.values())


# How it is called.


def test_values_arrive_as_the_types_that_were_annotated() -> None:
    said = output(
        describe,
        place={"city": "Bonn", "colours": ["blue"]},
        times=2,
        colour="red",
        on="2026-01-02",
        weights={"a": 1},
        point={"x": 3},
    )

    assert said == (
        "Place(city='Bonn', zip=None, colours=[<Colour.BLUE: 'blue'>]) 2 short Colour.RED "
        "datetime.date(2026, 1, 2) {'a': 1.0} Point(x=3, y=0)"
    )


def test_defaults_arrive_as_they_are_written() -> None:
    assert output(describe, place={"city": "Bonn"}).endswith("1 short Colour.BLUE None None Point(x=1, y=0)")


def test_a_default_that_only_python_knows_stays_out_of_the_schema() -> None:
    missing = object()

    @tool
    def sentinel(value: Any = missing) -> bool:
        """Tell whether nothing was given."""
        return value is missing

    assert "default" not in sentinel.to_anthropic_schema()["input_schema"]["properties"]["value"]
    assert output(sentinel) is True
    assert output(sentinel, value=1) is False


def test_fields_of_pydantic_may_be_defaults() -> None:
    a_few: list[int] = Field(default_factory=list, max_length=2)

    @tool
    def fields(
        a: int = Field(3, ge=2, description="At least two."),
        b: list[int] = a_few,
        c: Annotated[int, Field(default=7)] = 8,
    ) -> list[Any]:
        """Take fields."""
        b.append(a)
        return [b, c]

    properties = fields.to_anthropic_schema()["input_schema"]["properties"]
    assert properties["a"] == {"type": "integer", "description": "At least two.", "default": 3, "minimum": 2}
    assert (properties["b"]["default"], properties["b"]["maxItems"]) == ([], 2)
    assert output(fields) == output(fields) == [[3], 8]


@pytest.mark.parametrize(
    ("values", "errors"),
    [
        ({}, ["Missing required parameter: place"]),
        ({"place": {"city": "Bonn"}, "times": 10}, ["Value for times exceeds maximum: 9"]),
        ({"place": {}}, ["Missing required parameter: place.city"]),
        ({"place": {"city": "Bonn"}, "time": 1}, ["Unknown parameter 'time' (did you mean 'times'?)"]),
        ({"place": {"city": "Bonn"}, "colour": "green"}, ["Invalid value for colour: must be one of ['red', 'blue']"]),
        (
            {"place": {"city": "Atlantis"}, "on": "soon"},
            [
                "Invalid value for place.city: is under water",
                "Invalid value for on: Input should be a valid date or datetime, input is too short",
            ],
        ),
    ],
)
def test_bad_values_are_refused_whoever_finds_them(values: dict[str, Any], errors: list[str]) -> None:
    result = call(describe, **values)

    assert result.error_code == ErrorCode.VALIDATION_ERROR
    assert (result.error, result.metadata["errors"], result.metadata["required"]) == (errors[0], errors, ["place"])


def test_a_dry_run_checks_and_does_nothing() -> None:
    ran: list[int] = []

    @tool
    def act(on: date) -> None:
        """Act."""
        ran.append(1)

    dry = CONTEXT.model_copy(update={"dry_run": True})
    assert (
        asyncio.run(act.execute(dry, on="2026-01-01")).output == "[Dry Run] Would execute act with {'on': '2026-01-01'}"
    )
    assert asyncio.run(act.execute(dry, on="soon")).error_code == ErrorCode.VALIDATION_ERROR
    assert ran == []


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, None),
        ("text", "text"),
        (Place(city="Bonn"), {"city": "Bonn", "zip": None, "colours": ["red"]}),
        ([Point(1, 2)], [{"x": 1, "y": 2}]),
        ({date(2026, 1, 2)}, ["2026-01-02"]),
        ({"c": Colour.RED}, {"c": "red"}),
        ((1, 2.5, True), [1, 2.5, True]),
    ],
)
def test_what_it_returns_is_the_output_as_json_has_it(returned: Any, expected: Any) -> None:
    @tool
    def give() -> Any:
        """Give it."""
        return returned

    assert output(give) == expected


def test_a_result_is_passed_on_as_it_is() -> None:
    @tool
    def refuse() -> ToolResult:
        """Refuse."""
        return ToolResult.fail("no such city", error_code="NO_CITY", near="Bonn")

    result = call(refuse)
    assert (result.success, result.error_code, result.metadata["near"]) == (False, "NO_CITY", "Bonn")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no"), "Unexpected error: ValueError: no"),
        (StopIteration("no"), "Unexpected error: coroutine raised StopIteration"),
        (SystemExit("no"), "Unexpected error: SystemExit: no"),
        (ToolError("x", "no"), "Tool 'x' error: no"),
    ],
)
def test_whatever_it_raises_is_a_failed_result(error: BaseException, said: str) -> None:
    @tool
    def fail() -> None:
        """Fail."""
        raise error

    @tool
    async def fail_too() -> None:
        """Fail."""
        raise error

    assert (call(fail).error, call(fail_too).error) == (said, said)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_what_a_failed_function_had_is_freed_without_the_collector(
    is_cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    had: weakref.WeakSet[threading.Event] = weakref.WeakSet()
    may_end = threading.Event()

    @tool
    def fails() -> str:
        """Fail."""
        had.add(kept := threading.Event())
        may_end.wait()
        raise ValueError(str(kept))

    caplog.set_level("CRITICAL", "forge_tools.tools")  # what is logged is kept here
    gc.collect()
    gc.disable()
    try:
        call = asyncio.ensure_future(fails.execute(CONTEXT))
        await reached(lambda: had)
        if is_cancelled:
            call.cancel()
        may_end.set()
        with suppress(asyncio.CancelledError):
            assert not (await call).success
        del call
        await reached(lambda: not had)
    finally:
        gc.enable()


def test_secrets_are_hidden_wherever_people_look() -> None:
    @tool
    def login(user: str, token: SecretStr, pin: Annotated[str, "digits"] = "0000") -> str:
        """Log in."""
        raise ValueError(f"{user} cannot log in with {token.get_secret_value()}")

    registry = ScopedRegistry()
    registry.register(login)
    executor = ToolExecutor(registry)
    result = asyncio.run(executor.call("login", {"user": "ada", "token": "s3cret"}, CONTEXT))

    assert result.error == "Unexpected error: ada cannot log in with [redacted]"
    assert executor.get_executions()[0].parameters["token"] == "[redacted]"
    assert login.to_anthropic_schema()["input_schema"]["properties"]["token"] == {
        "type": "string", "description": "", "format": "password"
    }  # fmt: skip


# It stays a function.


def test_a_wrapped_coroutine_function_is_awaited() -> None:
    async def inner(x: int) -> int:
        """Double."""
        return 2 * x

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    assert output(tool(outer), x=4) == 8


def test_it_stays_callable_as_the_function_it_is() -> None:
    assert describe(Place(city="Bonn"), 3).startswith("Place(city='Bonn'")
    assert asyncio.run(whoami(CONTEXT)) == "None in MainThread"
    assert (describe.__name__, describe.__doc__) == ("describe", describe.__wrapped__.__doc__)
    assert list(inspect.signature(describe).parameters)[:2] == ["place", "times"]


def test_positional_only_parameters_are_filled() -> None:
    @tool
    def subtract(a: int, b: int = 1, /, c: int = 0) -> int:
        """Subtract."""
        return a - b - c

    assert (output(subtract, a=5), output(subtract, a=5, b=3, c=1)) == (4, 1)


def test_bound_methods_bring_what_they_are_bound_to() -> None:
    class Service:
        def __init__(self, url: str) -> None:
            self.url = url

        def search(self, query: str) -> str:
            """Search the service."""
            return f"{self.url}?{query}"

    assert output(tool(Service("http://x").search), query="a") == "http://x?a"


def test_it_is_pickled_and_loaded_by_where_it_is_found() -> None:
    assert pickle.loads(pickle.dumps(describe)) is describe
    assert load_tools([f"{__name__}:describe"], builtins=False, entry_points=False) == [describe]


def test_types_are_kept_for_checkers() -> None:
    kept: FunctionTool[..., str] = describe

    assert isinstance(kept, BaseTool)
