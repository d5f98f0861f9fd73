"""Parameters, results, contexts, categories and records as the requirements state them."""

import enum
import json
from datetime import UTC, datetime, timedelta
from typing import get_type_hints

import jsonschema
import pydantic
import pytest

from forge_tools.base import ExecutionContext, ToolCategory, ToolExecution, ToolParameter, ToolResult
from forge_tools.errors import ToolError
from tests.spec.sample_tools import Echo, parameter

spec = pytest.mark.spec


@spec("S0-01", "S0-05", "S4-06")
def test_a_string_parameter_renders_type_and_description_only() -> None:
    plain = ToolParameter(name="file_path", type="string", description="Absolute path to the file to read")

    assert plain.to_json_schema() == {"type": "string", "description": "Absolute path to the file to read"}


@spec("S0-02", "S0-05", "S3-007")
def test_an_enum_with_a_default_renders_both() -> None:
    choice = ToolParameter(
        name="format",
        type="string",
        description="Output format",
        required=False,
        default="openai",
        enum=["openai", "anthropic"],
    )

    assert choice.to_json_schema() == {
        "type": "string",
        "description": "Output format",
        "default": "openai",
        "enum": ["openai", "anthropic"],
    }


@spec("S0-03", "S0-05", "S3-008", "S4-07")
def test_bounds_stay_the_integers_they_were_declared_as() -> None:
    timeout = parameter("timeout", "integer", required=False, default=120, minimum=1, maximum=600)

    schema = timeout.to_json_schema()

    assert schema == {"type": "integer", "description": "The timeout", "default": 120, "minimum": 1, "maximum": 600}
    assert json.dumps(schema).endswith('"default": 120, "minimum": 1, "maximum": 600}')


@spec("S0-04", "S0-05", "S3-009")
def test_lengths_render_in_the_words_of_json_schema() -> None:
    schema = parameter("content", min_length=1, max_length=1_000_000).to_json_schema()

    assert (schema["minLength"], schema["maxLength"]) == (1, 1_000_000)


@spec("S3-001", "S3-002", "S3-003", "S3-004", "S4-05")
def test_a_parameter_is_a_model_whose_optional_fields_default_to_nothing() -> None:
    assert issubclass(ToolParameter, pydantic.BaseModel)
    minimal = parameter("x")
    assert minimal.required is True
    unset = ("default", "enum", "min_length", "max_length", "minimum", "maximum", "items", "properties")
    assert [getattr(minimal, name) for name in unset] == [None] * len(unset)


@spec("S3-005", "S3-006")
@pytest.mark.parametrize("type", ["string", "integer", "number", "boolean", "array", "object"])
def test_each_json_type_renders_a_valid_json_schema(type: str) -> None:
    schema = parameter("x", type, enum=None, minimum=0, max_length=3).to_json_schema()

    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == type


@spec("S3-010")
@pytest.mark.parametrize("default", [0, False, "", [], {}])
def test_a_falsy_default_is_still_shown(default: object) -> None:
    assert parameter("x", required=False, default=default).to_json_schema()["default"] == default


@spec("S1-07")
def test_a_parameter_carries_nested_items_properties_and_required_names() -> None:
    inner = {"type": "object", "properties": {"old": {"type": "string", "enum": ["a"]}}, "required": ["old"]}

    listed = parameter("edits", "array", items=inner).to_json_schema()
    nested = parameter("edit", "object", properties=inner["properties"], required_properties=("old",)).to_json_schema()

    assert listed["items"] == inner
    assert (nested["properties"], nested["required"]) == (inner["properties"], ["old"])


@spec("S0-06", "S3-013")
def test_ok_carries_the_output_and_no_error() -> None:
    result = ToolResult.ok("file content here")

    assert (result.success, result.output, result.error) == (True, "file content here", None)


@spec("S0-07")
def test_keywords_of_ok_become_metadata() -> None:
    assert ToolResult.ok("output", lines=100, bytes=5000).metadata == {"lines": 100, "bytes": 5000}


@spec("S0-08", "S3-014")
def test_fail_carries_the_error_and_no_output() -> None:
    result = ToolResult.fail("File not found: /foo/bar")

    assert (result.success, result.error, result.output) == (False, "File not found: /foo/bar", None)


@spec("S0-09")
def test_keywords_of_fail_become_metadata() -> None:
    assert ToolResult.fail("Permission denied", path="/x", errno=13).metadata == {"path": "/x", "errno": 13}


@spec("S0-10", "S3-015", "S3-016", "S4-09")
def test_a_success_displays_its_output_as_text() -> None:
    assert ToolResult.ok("Hello World").to_display() == "Hello World"
    assert ToolResult.ok({"a": 1}).to_display() == "{'a': 1}"


@spec("S0-11", "S3-017")
def test_a_failure_displays_its_error() -> None:
    assert ToolResult.fail("Something went wrong").to_display() == "Error: Something went wrong"


@spec("S1-53", "S1-54")
def test_models_get_strings_as_they_are_and_other_data_as_indented_json() -> None:
    assert ToolResult.ok("as is").to_text() == "as is"
    assert ToolResult.ok({"a": ["é"]}).to_text() == json.dumps({"a": ["é"]}, indent=2, ensure_ascii=False)
    assert ToolResult.fail("no").to_text() == "Error: no"


@spec("S3-011", "S3-012", "S4-08")
def test_a_result_is_a_model_with_the_fields_people_read() -> None:
    assert issubclass(ToolResult, pydantic.BaseModel)
    assert {"success", "output", "error", "duration_ms", "metadata"} <= set(ToolResult.model_fields)
    bare, anything = ToolResult(success=True).model_dump(), object()
    assert (bare["duration_ms"], bare["metadata"]) == (None, {})
    assert ToolResult.ok(anything).output is anything


@spec("S1-08")
def test_the_nested_shape_has_data_error_and_execution_time() -> None:
    failed = ToolResult.fail("gone", error_code="FILE_NOT_FOUND", error_details={"path": "a"}, bytes_read=0)
    failed.duration_ms = 2.5

    assert failed.to_dict("nested") == {
        "success": False,
        "data": None,
        "error": {"code": "FILE_NOT_FOUND", "message": "gone", "details": {"path": "a"}},
        "metadata": {"executionTimeMs": 2.5, "bytesRead": 0},
    }
    assert ToolResult.ok(1).to_dict("nested")["error"] is None
    assert ToolResult.ok(1).data == ToolResult.ok(1).to_dict()["output"] == 1


@spec("S0-12", "S3-018", "S3-019", "S3-020", "S3-021")
def test_a_context_needs_only_a_working_folder() -> None:
    assert issubclass(ExecutionContext, pydantic.BaseModel)
    context = ExecutionContext(working_dir="/home/user/project")

    assert context.model_dump(exclude={"workspace"}) == {
        "working_dir": "/home/user/project",
        "session_id": None,
        "agent_id": None,
        "dry_run": False,
        "timeout": 120.0,
        "max_output_size": 100_000,
        "metadata": {},
    }


@spec("S0-13", "S1-11")
def test_every_option_of_a_context_survives_a_round_trip() -> None:
    given = {
        "working_dir": "/home/user/project",
        "session_id": "sess_abc123",
        "agent_id": "agent_001",
        "dry_run": True,
        "timeout": 60.0,
        "max_output_size": 50_000,
        "metadata": {"k": [1]},
        "workspace": "repo",
    }

    context = ExecutionContext.model_validate_json(json.dumps(given))

    assert context.model_dump() == given


@spec("S3-022")
def test_contexts_do_not_share_their_metadata() -> None:
    one, other = ExecutionContext(working_dir="."), ExecutionContext(working_dir=".")
    one.metadata["k"] = 1

    assert other.metadata == {}


@spec("S0-14", "S3-023", "S3-024", "S3-025")
def test_there_are_seven_categories_and_they_are_strings() -> None:
    values = {"file", "execution", "web", "task", "notebook", "mcp", "other"}

    assert issubclass(ToolCategory, str)
    assert issubclass(ToolCategory, enum.Enum)
    assert {(member.name, member.value) for member in ToolCategory} == {(v.upper(), v) for v in values}


@spec("S3-083", "S3-084", "S3-085", "S3-086", "S4-13")
def test_a_record_is_typed_and_serializes_its_duration() -> None:
    began = datetime.now(UTC)
    record = ToolExecution(
        tool_name="Echo",
        parameters={},
        context=ExecutionContext(working_dir="."),
        result=ToolResult.ok(1),
        started_at=began,
        completed_at=began + timedelta(seconds=2),
    )

    hints = get_type_hints(ToolExecution)
    assert issubclass(ToolExecution, pydantic.BaseModel)
    assert hints["result"] is ToolResult
    assert hints["context"] is ExecutionContext
    assert record.model_dump()["duration_ms"] == record.duration_ms == 2000


@spec("S0-67", "S3-121", "S3-122", "S3-123")
def test_a_tool_error_names_its_tool() -> None:
    error = ToolError("Read", "File not found")

    assert (error.tool_name, error.message) == ("Read", "File not found")
    assert str(error) == "Tool 'Read' error: File not found"


@spec("S1-15", "S1-16", "S1-58")
def test_a_tool_has_capabilities_and_a_version_of_its_own() -> None:
    class NewerEcho(Echo):
        version = "1.1.0"

    newer, can = NewerEcho().spec, Echo().spec.capabilities.model_dump()

    assert (newer.name, newer.description, newer.parameters) == ("Echo", "Return the message", (parameter("message"),))
    assert (Echo().spec.version, newer.version) == ("1.0.0", "1.1.0")
    assert can == dict.fromkeys(
        ["writes_files", "executes_commands", "accesses_network", "requires_engine", "idempotent", "retryable"], False
    ) | {"paths": ()}
