"""What a model is offered, and how its calls are answered."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.adapters.toolset import Answer, ToolCall, Toolset
from forge_tools.errors import ConfigurationError, DatabaseUnavailableError, ErrorCode, ToolNotFoundError
from forge_tools.tool.base import ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.tool.executor import CallOptions, ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.spec.sample_tools import Echo, Recorder, parameter


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        ({"categories": [ToolCategory.FILE]}, ["Read"]),
        ({"categories": ["execution", "file"]}, ["Bash", "Read"]),
        ({"tags": ["data"]}, ["Table"]),
        ({"names": ["Echo", "read_file"]}, ["Echo", "Read"]),
        ({"names": ["Echo", "Bash"], "categories": ["execution"]}, ["Bash"]),
        ({"names": "Echo"}, ["Echo"]),
        ({"categories": "file"}, ["Read"]),
        ({"tags": "data"}, ["Table"]),
    ],
)
def test_a_choice_is_by_category_tag_and_name(executor: ToolExecutor, choice: Any, offered: list[str]) -> None:
    assert sorted(spec.name for spec in Toolset(executor, **choice).specs()) == offered


def test_a_name_that_is_that_of_no_tool_is_refused_at_once(executor: ToolExecutor) -> None:
    with pytest.raises(ToolNotFoundError, match=r"'Ecko'.*did you mean 'Echo'"):
        Toolset(executor, names=["Echo", "Ecko"])


def test_what_is_no_category_or_no_number_of_calls_is_refused_with_the_way_out(executor: ToolExecutor) -> None:
    with pytest.raises(ValueError, match="'fil' is not a category; there are file, execution"):
        Toolset(executor, categories=["fil"])
    for number in (0, -1):
        with pytest.raises(ValueError, match=f"concurrency is {number}; give at least 1, or None for no limit"):
            Toolset(executor, concurrency=number)


async def test_what_is_not_offered_is_not_run_either(executor: ToolExecutor) -> None:
    offered = Toolset(executor, categories=["file"])

    answers = await offered.answer([ToolCall("1", "Bash", {"command": "x"}), ToolCall("2", "read_file", {"path": "y"})])

    assert [answer.result.error_code for answer in answers] == [ErrorCode.TOOL_NOT_FOUND, None]
    assert [execution.tool_name for execution in executor.get_executions()] == ["Read"]


async def test_a_choice_holds_for_tools_that_came_since_the_tools_were_listed(
    executor: ToolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    some, all_of_them = Toolset(executor, categories=["file"]), Toolset(executor)
    monkeypatch.setattr(executor, "specs", list)

    [refused] = await some.answer([ToolCall("1", "Bash", {"command": "x"})])
    [run] = await all_of_them.answer([ToolCall("1", "Bash", {"command": "x"})])

    assert (refused.text, run.text) == ("Error: Unknown tool: Bash", "x")


async def test_calls_run_in_the_context_that_is_given(executor: ToolExecutor) -> None:
    context = ExecutionContext(working_dir=".", session_id="session-7")

    await Toolset(executor, context=context).answer([ToolCall("1", "Echo", {"message": "x"})])

    assert executor.get_executions()[0].context.session_id == "session-7"


async def test_nulls_for_optional_members_are_left_out_at_every_depth(registry: ScopedRegistry) -> None:
    inner = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {}}}
    tool = Recorder(
        parameter(
            "filter", "object", properties={"deep": inner, "must": {"type": "null"}}, required_properties=("must",)
        ),
        parameter("rows", "array", items=inner, required=False),
        parameter("limit", "integer", required=False),
        answer="ok",
    )
    registry.register(tool)
    nulls = {"a": None, "b": None, "c": None}

    given = {"filter": {"deep": nulls, "must": None}, "rows": [nulls, {"a": "x"}], "limit": None}
    [answer] = await Toolset(ToolExecutor(registry)).answer([ToolCall("1", "Recorder", given)])

    assert answer.text == "ok"
    kept = {"b": None, "c": None}
    assert tool.calls == [{"filter": {"deep": kept, "must": None}, "rows": [kept, {"a": "x"}]}]


async def test_arguments_of_a_schema_that_takes_anything_are_passed_on(registry: ScopedRegistry) -> None:
    properties = {"any": True, "all": {"type": "array", "items": True}}
    tool = Recorder(input_schema={"type": "object", "properties": properties}, answer="ok")
    registry.register(tool)
    given = {"any": {"a": None}, "all": [None, {"b": None}]}

    [answer] = await Toolset(ToolExecutor(registry)).answer([ToolCall("1", "Recorder", given)])

    assert (answer.text, tool.calls) == ("ok", [given])


async def test_nulls_inside_alternatives_are_left_out_too(registry: ScopedRegistry) -> None:
    page = {"type": "object", "properties": {"size": {"type": "integer"}, "kind": {"enum": ["a", "b"]}}}
    other = {"type": "object", "properties": {"mark": {"type": "string"}}}
    parts = [{"type": "null"}, other, page, {"type": "array", "items": page}]
    tool = Recorder(
        parameter("filter", "object", properties={"page": {"anyOf": parts}}),
        ToolParameter(name="page", type="any", description="A page.", keywords={"anyOf": parts}),
        answer="ok",
    )
    registry.register(tool)
    nulls = {"size": None, "kind": None}

    given = {"filter": {"page": [nulls, {"size": 3, "kind": None}]}, "page": nulls}
    [answer] = await Toolset(ToolExecutor(registry)).answer([ToolCall("1", "Recorder", given)])

    assert answer.text == "ok"
    assert tool.calls == [{"filter": {"page": [{}, {"size": 3}]}, "page": {}}]


class Refusing(ToolExecutor):
    def __init__(self, error: Exception) -> None:
        super().__init__(ScopedRegistry())
        self.error = error

    async def call(self, *_: Any, **__: Any) -> ToolResult:
        raise self.error


async def test_what_the_executor_cannot_do_is_told_and_what_its_author_must_mend_is_raised() -> None:
    away, closed = DatabaseUnavailableError("The database is away."), ConfigurationError("Not connected.")

    [answer] = await Toolset(Refusing(away)).answer([ToolCall("1", "Echo", {})])

    assert (answer.text, answer.is_error) == ("Error: The database is away.", True)
    with pytest.raises(ConfigurationError):
        await Toolset(Refusing(closed)).answer([ToolCall("1", "Echo", {})])


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ToolResult.ok("plain"), "plain"),
        (ToolResult.ok(""), "(no output)"),
        (ToolResult.ok(None), "null"),
        (ToolResult.ok({"a": ["é"]}), '{\n  "a": [\n    "é"\n  ]\n}'),
        (ToolResult.fail("It broke"), "Error: It broke"),
        (ToolResult.ok("half \ud83d"), "half \\ud83d"),
    ],
)
def test_a_result_is_text_or_json_that_can_be_sent(result: ToolResult, text: str) -> None:
    assert Answer(ToolCall("1", "T", {}), result).text == text


def test_the_handle_of_a_cut_output_is_told_once() -> None:
    handle = "artifact://" + "a" * 32
    silent, told = ToolResult.ok("head", artifact=handle), ToolResult.ok(f"head, all in {handle}", artifact=handle)

    assert handle in Answer(ToolCall("1", "T", {}), silent).text
    assert Answer(ToolCall("1", "T", {}), told).text == told.output


async def test_the_answers_to_many_calls_keep_the_order_whatever_ends_first(executor: ToolExecutor) -> None:
    calls = [ToolCall(str(n), "Slow", {"seconds": (10 - n) / 100}) for n in range(10)]

    async with asyncio.timeout(30):
        answers = await Toolset(executor).answer(calls)

    assert [answer.call.id for answer in answers] == [str(n) for n in range(10)]


async def test_calls_may_be_run_one_after_the_other(registry: ScopedRegistry) -> None:
    running, most = 0, 0

    class Busy(Recorder):
        async def _execute(self, context: Any, /, **kwargs: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            self.calls.append(kwargs)
            running -= 1

    busy = Busy(parameter("n", "integer"))
    registry.register(busy)
    await Toolset(ToolExecutor(registry), concurrency=1).answer([ToolCall("", "Recorder", {"n": n}) for n in range(5)])

    assert (most, [call["n"] for call in busy.calls]) == (1, [0, 1, 2, 3, 4])


class Blocking:
    """An executor whose calls block."""

    def __init__(self, executor: ToolExecutor) -> None:
        self.specs = executor.specs
        self.given: list[dict[str, Any]] = []
        self._executor = executor

    def call(self, name: str, arguments: Any, context: Any = None, **options: Any) -> ToolResult:
        self.given.append(options)
        return asyncio.run(self._executor.call(name, arguments, context))


@pytest.mark.parametrize("options", [None, CallOptions(timeout=5)])
async def test_an_executor_whose_calls_block_runs_them_in_threads(executor: ToolExecutor, options: Any) -> None:
    blocking = Blocking(executor)
    calls = [ToolCall("1", "Slow", {"seconds": 0.1}), ToolCall("2", "Echo", {"message": "x"})]

    answers = await Toolset(blocking, options=options).answer(calls)

    assert [answer.text for answer in answers] == ["done", "x"]
    assert blocking.given == [{"options": options} if options else {}] * 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
WILD = st.text(st.characters(exclude_categories=()))


@given(WILD | st.sampled_from(["Echo", "Recorder"]), st.one_of(WILD, JSON, JSON.map(json.dumps), st.binary()))
def test_whatever_a_model_sends_is_answered_with_text_that_can_be_sent(name: str, arguments: Any) -> None:
    registry = ScopedRegistry()
    registry.register(Echo())
    registry.register(Recorder(parameter("x", "object", properties={"y": {"type": "string"}}), answer="ok"))

    [answer] = asyncio.run(Toolset(ToolExecutor(registry)).answer([ToolCall("1", name, arguments)]))

    assert answer.text.encode()
    assert answer.text.startswith("Error: ") or not answer.is_error
