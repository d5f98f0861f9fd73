"""Tools as they are listed, and results as they are answered."""

from typing import Any

import pytest
from mcp import types

from forge_tools.mcp.rendering import answered, listed
from forge_tools.records import Capabilities, ToolCategory, ToolParameter, ToolResult, ToolSpec

SPEC = ToolSpec(
    name="ListDirectory",
    description="List.",
    category=ToolCategory.FILE,
    parameters=(ToolParameter(name="path", type="string", description="Where."),),
)


def texts(result: types.CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, types.TextContent)]


def test_a_tool_is_listed_with_title_schema_and_description() -> None:
    tool = listed(SPEC, as_task=False)

    assert (tool.name, tool.title, tool.description) == ("ListDirectory", "List Directory", "List.")
    assert tool.input_schema["required"] == ["path"]
    assert tool.execution is None


@pytest.mark.parametrize(
    ("can", "hints"),
    [
        ({}, (True, False, False, False)),
        ({"writes_files": True, "idempotent": True}, (False, True, True, False)),
        ({"executes_commands": True, "accesses_network": True}, (False, True, False, True)),
    ],
)
def test_capabilities_become_hints(can: dict[str, bool], hints: tuple[bool, ...]) -> None:
    said = listed(SPEC.model_copy(update={"capabilities": Capabilities(**can)}), as_task=False).annotations

    assert said is not None
    assert (said.read_only_hint, said.destructive_hint, said.idempotent_hint, said.open_world_hint) == hints


def test_calls_may_be_made_tasks_where_that_is_said() -> None:
    execution = listed(SPEC, as_task=True).execution

    assert execution is not None
    assert execution.task_support == "optional"


def test_text_stays_as_it_is() -> None:
    result = answered(ToolResult.ok("one\n\x1b[1mtwo\x1b[0m"))

    assert texts(result) == ["one\n\x1b[1mtwo\x1b[0m"]
    assert result.structured_content is None
    assert not result.is_error


def test_an_object_is_text_and_structured_content() -> None:
    result = answered(ToolResult.ok({"a": [1, "ü"]}))

    assert result.structured_content == {"a": [1, "ü"]}
    assert '"ü"' in texts(result)[0]


@pytest.mark.parametrize("output", [[1, 2], 7, None, {"a": float("nan")}, {1: "a"}, {"a": object()}])
def test_what_is_no_json_object_is_text_alone(output: Any) -> None:
    result = answered(ToolResult.ok(output))

    assert result.structured_content is None
    assert result.model_dump_json()


@pytest.mark.parametrize("output", ["\ud800 half", {"half \udfff": ["\ud800"]}])
def test_half_a_surrogate_pair_does_not_break_the_wire(output: Any) -> None:
    result = answered(ToolResult.ok(output))

    assert "ud800" in result.model_dump_json()


def test_a_failure_says_why_and_what_was_put_out_before() -> None:
    failed = ToolResult.fail("no such file", error_code="TOOL_ERROR", execution_id="id-1")
    result = answered(failed.model_copy(update={"output": "half"}))

    assert result.is_error
    assert texts(result) == ["Error: no such file", "half"]
    assert result.meta == {"forge-tools/execution-id": "id-1", "forge-tools/error-code": "TOOL_ERROR"}


def test_every_problem_of_the_arguments_is_told() -> None:
    result = answered(ToolResult.fail("a is missing", errors=["a is missing", "b is missing"], hint="did you mean c?"))

    assert texts(result) == ["Error: a is missing\nb is missing\ndid you mean c?"]


def test_an_output_that_was_too_long_is_linked() -> None:
    handle = f"artifact://{'0' * 32}"
    result = answered(ToolResult.ok("head ... tail", artifact=handle))

    link = result.content[-1]
    assert isinstance(link, types.ResourceLink)
    assert link.uri == handle


def test_what_only_looks_like_an_artifact_is_not_linked() -> None:
    assert len(answered(ToolResult.ok("text", artifact="file:///etc/passwd")).content) == 1
