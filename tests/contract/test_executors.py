"""An executor in this process and one on workers answer alike, so programs can use either."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from forge_tools.adapters import ToolCall, Toolset
from forge_tools.client import ExecutorClient
from forge_tools.model import CallOptions, ExecutionContext, RetryPolicy, ToolCategory
from forge_tools.schema.providers import FORMATS
from forge_tools.testing import InlineExecutor
from tests.fleet import Fleet
from tests.function_tools import make

Executor = InlineExecutor | ExecutorClient

ALL = ["block", "fail", "greet", "salute", "who"]
BONN = {"place": {"city": "Bonn", "tags": ["old"]}}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, valkey_server: Any) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("executors")
    valkey_server.flush()
    fleet = Fleet(folder, valkey_server.url, f"sqlite:///{folder / 'forge.db'}", kill_grace=1.0)
    for lane in ("async", "process"):
        fleet.start(lane, tools="tests.function_tools:make")
    yield fleet
    fleet.stop()


@pytest.fixture(params=["in process", "on workers"])
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[Executor]:
    if request.param == "in process":
        async with InlineExecutor(*make()) as inline:
            yield inline
    else:
        async with ExecutorClient(request.getfixturevalue("fleet").settings) as client:
            yield client


@pytest.fixture
def context(tmp_path: Path) -> ExecutionContext:
    return ExecutionContext(working_dir=".", agent_id="agent-1", session_id="session-1")


async def test_a_call_gives_its_output(executor: Executor, context: ExecutionContext) -> None:
    by_keywords = await executor.execute("greet", context, **BONN, times=2, mode="loud")
    by_object = await executor.call("greet", {**BONN, "times": 2, "mode": "loud"}, context)

    expected = {"text": "HELLO BONN, HELLO BONN", "place": {"city": "Bonn", "tags": ["old"]}}
    assert by_keywords.output == by_object.output == expected
    assert by_object.duration_ms is not None


async def test_a_tool_answers_to_its_aliases_too(executor: Executor) -> None:
    assert (await executor.call("hello", BONN)).output["text"] == "Hello Bonn"


async def test_the_context_reaches_the_function(executor: Executor, context: ExecutionContext) -> None:
    result = await executor.call("who", {"prefix": "x"}, context)

    assert result.output == {"agent": "agent-1", "session": "session-1", "prefix": "x"}


async def test_a_model_hears_every_problem_of_its_call_at_once(executor: Executor) -> None:
    [answer] = await Toolset(executor).answer([ToolCall("1", "greet", {"palce": 1})])

    problems = answer.result.error_details
    assert [one.partition(" (")[0] for one in problems] == [
        "Unknown parameter 'palce'",
        "Missing required parameter: place",
    ]
    assert answer.text == "\n".join(f"Error: {one}" for one in problems)


async def test_what_a_factory_provided_reaches_the_function(executor: Executor) -> None:
    assert (await executor.call("salute", {"name": "Ada"})).output == "Ahoy Ada"


async def test_calls_run_at_once_and_keep_their_results_apart(executor: Executor) -> None:
    results = await asyncio.gather(*(executor.call("who", {"prefix": str(number)}) for number in range(30)))

    assert [result.output["prefix"] for result in results] == [str(number) for number in range(30)]


@pytest.mark.parametrize(
    ("name", "arguments", "code", "error"),
    [
        ("nothing", {}, "TOOL_NOT_FOUND", "Unknown tool: nothing"),
        ("greet", {}, "VALIDATION_ERROR", "Missing required parameter: place"),
        ("greet", {**BONN, "times": 4}, "VALIDATION_ERROR", "Value for times exceeds maximum: 3"),
        ("greet", {"place": {"city": 5}}, "VALIDATION_ERROR", "Invalid type for place.city: expected string"),
        ("greet", {**BONN, "tims": 1}, "VALIDATION_ERROR", "Unknown parameter 'tims' (did you mean 'times'?)"),
        ("fail", {"reason": "no licence"}, "EXECUTION_ERROR", "Unexpected error: no licence"),
    ],
)
async def test_failures_are_results_in_the_same_words(
    executor: Executor, name: str, arguments: dict[str, Any], code: str, error: str
) -> None:
    result = await executor.call(name, arguments)

    assert (result.success, result.error_code, result.error) == (False, code, error)


@pytest.mark.parametrize("arguments", [[], "text", 5, {1: "x"}])
async def test_arguments_that_are_not_an_object_with_names_are_a_wrong_form(executor: Executor, arguments: Any) -> None:
    result = await executor.call("greet", arguments)

    assert result.error_code == "INVALID_CALL"
    assert "Invalid parameters: expected an object with names as keys" in (result.error or "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 1.0}, "Invalid options: expected CallOptions, not dict"),
        (CallOptions(timeout=cast("float", "1")), "timeout is '1'; it must be a number of seconds above 0"),
        (CallOptions(timeout=float("inf")), "timeout is inf"),
        (CallOptions(timeout=10**400), "timeout is 1000"),
        (CallOptions(retry=cast("RetryPolicy", 3)), "retry is 3; it must be a RetryPolicy"),
        (CallOptions(retry=RetryPolicy(0)), "retry.max_attempts is 0; it must be a whole number from 1 to 100"),
        (CallOptions(retry=RetryPolicy(2, delay_seconds=float("nan"))), "retry.delay_seconds is nan"),
    ],
)
async def test_options_that_are_none_are_a_wrong_form(executor: Executor, options: Any, said: str) -> None:
    result = await executor.call("greet", BONN, None, options)

    assert result.error_code == "INVALID_CALL"
    assert said in (result.error or "")


async def test_no_arguments_at_all_are_an_empty_object(executor: Executor) -> None:
    assert (await executor.call("greet", None)).error == (await executor.call("greet", {})).error


async def test_parameters_that_json_cannot_carry_are_refused(executor: Executor) -> None:
    result = await executor.call("who", {"prefix": b"x"})

    assert (result.error_code, "parameters.prefix" in str(result.error)) == ("VALIDATION_ERROR", True)


async def test_a_timeout_of_the_call_ends_a_function_that_blocks(executor: Executor) -> None:
    result = await executor.call("block", {}, None, CallOptions(timeout=0.3))

    assert (result.error_code, result.error) == ("TIMEOUT", "Tool timed out after 0.3s")


async def test_retries_of_the_call_are_those_the_tool_allows(executor: Executor) -> None:
    options = CallOptions(retry=RetryPolicy(max_attempts=3, delay_seconds=0.01))

    result = await executor.call("fail", {"reason": "again"}, None, options)

    assert (result.success, result.error) == (False, "Unexpected error: ValueError: again")


async def test_a_dry_run_does_nothing(executor: Executor, context: ExecutionContext) -> None:
    result = await executor.call("block", {"seconds": 30}, context.model_copy(update={"dry_run": True}))

    assert result.output == "[Dry Run] Would execute block with {'seconds': 30}"


async def test_both_know_the_same_tools(executor: Executor) -> None:
    specs = {spec.name: spec for spec in executor.specs()}

    assert set(ALL) <= set(specs)
    assert {name: specs[name].digest for name in ALL} == {one.spec.name: one.spec.digest for one in make()}


@pytest.mark.parametrize("format", FORMATS)
async def test_both_show_models_the_same_schemas(executor: Executor, format: str) -> None:
    def by_name(schemas: list[dict[str, Any]]) -> dict[str, Any]:
        return {schema.get("function", schema)["name"]: schema for schema in schemas}

    shown = by_name(executor.get_all_schemas(format))
    one_category = executor.get_schemas_by_category(ToolCategory.TASK, format)
    async with InlineExecutor(*make()) as inline:
        expected = by_name(inline.get_all_schemas(format))

    assert {name: shown[name] for name in ALL} == expected
    assert by_name(one_category)["greet"] == expected["greet"]


async def test_an_unknown_format_is_refused(executor: Executor) -> None:
    with pytest.raises(ValueError, match="Unknown schema format: yaml"):
        executor.get_all_schemas("yaml")
    with pytest.raises(ValueError, match="Unknown schema format: yaml"):
        executor.get_schemas_by_category(ToolCategory.MCP, "yaml")
