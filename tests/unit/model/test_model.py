"""The shared vocabulary: specs, contexts, results, ids."""

import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from forge_tools.model import (
    Capabilities,
    ExecutionContext,
    ExecutionStatus,
    RetryPolicy,
    ToolCategory,
    ToolExecution,
    ToolParameter,
    ToolResult,
    ToolSpec,
    new_id,
)
from forge_tools.model.diagnosis import LostBody
from forge_tools.model.execution import TERMINAL, NewExecution, Outcome, id_time


def parameter(name: str, **rest: Any) -> ToolParameter:
    return ToolParameter(name=name, type="string", description="d", **rest)


def spec(*parameters: ToolParameter, **rest: Any) -> ToolSpec:
    return ToolSpec(name="Tool", description="d", category=ToolCategory.OTHER, parameters=parameters, **rest)


def test_a_spec_survives_the_catalogue_with_its_digest() -> None:
    before = spec(parameter("x", items={"type": "string"}, aliases=("y",)), tags=("a",), timeout=5, lane="async")

    after = ToolSpec.model_validate_json(before.model_dump_json())

    assert after == before
    assert after.digest == before.digest
    assert len(before.digest) == 16


def test_whatever_changes_in_a_definition_changes_its_digest() -> None:
    variants = [
        spec(),
        spec(parameter("x")),
        spec(parameter("x", sensitive=True)),
        spec(parameter("x", default="")),
        spec(version="1.0.1"),
        spec(capabilities=Capabilities(idempotent=True)),
        spec(extra=True),
    ]

    assert len({variant.digest for variant in variants}) == len(variants)


def test_a_copy_has_a_digest_of_its_own() -> None:
    before = spec(parameter("x", sensitive=True))
    known = before.digest, before.sensitive

    after = before.model_copy(update={"parameters": ()})

    assert (after.digest, after.sensitive) == (spec().digest, frozenset())
    assert (before.model_copy().digest, before.model_copy().sensitive) == known


def test_a_worker_must_host_the_same_major_version() -> None:
    assert spec(version="2.3.4").key == "Tool@2"


@pytest.mark.parametrize(
    ("idempotent", "max_attempts", "attempts"), [(False, None, 1), (True, None, 3), (True, 1, 1), (False, 5, 5)]
)
def test_idempotent_tools_have_three_attempts_unless_they_say_otherwise(
    idempotent: bool, max_attempts: int | None, attempts: int
) -> None:
    assert spec(capabilities=Capabilities(idempotent=idempotent), max_attempts=max_attempts).attempts == attempts


def test_the_policy_of_a_tool_says_how_many_attempts_it_has() -> None:
    retry = RetryPolicy(max_attempts=7)

    assert (spec(retry=retry).attempts, spec(retry=retry, max_attempts=2).attempts) == (7, 2)
    assert spec(retry=retry).digest != spec().digest
    assert ToolSpec.model_validate(spec(retry=retry).model_dump(mode="json")) == spec(retry=retry)


def loss(**changes: Any) -> str:
    facts = {
        "attempt": 1,
        "max_attempts": 3,
        "idempotent": False,
        "started_at": datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC),
    }
    return str(LostBody(what="Process 7 on box ended", **facts | changes))


def test_a_loss_says_what_is_known_and_what_to_do() -> None:
    assert loss() == (
        "Process 7 on box ended while the tool ran (started 2026-05-04 03:02:01 UTC, attempt 1 of 3). "
        "Whether it took effect is unknown. "
        "The tool is not idempotent, so it is not run again: check its effects before you submit it again."
    )


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"idempotent": True}, "so it may be run again."),
        ({"idempotent": True, "attempt": 3}, "All 3 attempts are used up: find out what ends the process"),
        ({"idempotent": True, "max_attempts": 1}, "Its only attempt is used up"),
        ({"started_at": None}, "(attempt 1 of 3)"),
    ],
)
def test_the_advice_fits_the_attempts_that_are_left(changes: dict[str, Any], advice: str) -> None:
    assert advice in loss(**changes)


@pytest.mark.parametrize(
    ("call", "tool", "maximum", "expected"),
    [
        (None, None, None, (120.0, "default")),
        (None, 600.0, None, (600.0, "tool")),
        (5.0, 600.0, None, (5.0, "call")),
        (120.0, 600.0, None, (120.0, "call")),
        (500.0, None, 60.0, (60.0, "operator maximum (asked 500s by call)")),
        (None, 30.0, 60.0, (30.0, "tool")),
    ],
)
def test_the_timeout_of_a_call_says_where_it_came_from(
    call: float | None, tool: float | None, maximum: float | None, expected: tuple[float, str]
) -> None:
    context = ExecutionContext(working_dir=".", **({} if call is None else {"timeout": call}))

    assert spec(timeout=tool).timeout_for(context, maximum) == expected


def test_sensitive_parameters_are_redacted_under_every_name() -> None:
    tool = spec(parameter("key", sensitive=True, aliases=("api_key",)), parameter("url", aliases=("uri",)))

    hidden = tool.hidden({"key": "a", "api_key": "b", "url": "c", "uri": "d", "apikey": "e"})

    assert hidden == ["key", "api_key", "apikey"]
    assert tool.sensitive == {"key", "api_key"}


def test_without_sensitive_parameters_only_unknown_names_that_say_so_are_hidden() -> None:
    tool = spec(parameter("x"), parameter("token", sensitive=False))

    assert tool.hidden({"x": "a", "unknown": "b", "token": "c", "password": "d"}) == ["password"]


def test_a_copy_of_a_definition_hides_what_it_says_and_not_what_the_first_one_said() -> None:
    tool = spec(parameter("x"), parameter("y", sensitive=True))
    assert tool.hidden({"x": "a", "y": "b"}) == ["y"]

    copy = tool.model_copy(update={"parameters": (parameter("x", sensitive=True), parameter("y"))})

    assert copy.hidden({"x": "a", "y": "b"}) == ["x"]
    assert copy.digest != tool.digest


def test_definitions_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        spec().name = "Other"
    with pytest.raises(ValidationError):
        parameter("x").name = "y"


def test_keywords_of_results_may_have_the_names_of_their_fields() -> None:
    assert ToolResult.ok("x", output=1, error=2, success=3).metadata == {"output": 1, "error": 2, "success": 3}
    failed = ToolResult.fail("no", error_code="X", error_details=[1], error="y", success=True)
    assert (failed.error, failed.error_code, failed.error_details) == ("no", "X", [1])
    assert failed.metadata == {"error": "y", "success": True}


def test_text_for_a_model_shows_what_json_cannot_carry_as_text() -> None:
    assert json.loads(ToolResult.ok({"at": datetime(2026, 1, 2, tzinfo=UTC)}).to_text()) == {
        "at": "2026-01-02 00:00:00+00:00"
    }


def test_text_for_a_model_is_text_whatever_a_tool_returned() -> None:
    circle: list[object] = []
    circle.append(circle)
    for output in (circle, {(1, 2): 3}):
        assert ToolResult.ok(output).to_text() == f"<{type(output).__name__} that cannot be written as JSON>"


def test_the_monotonic_duration_wins_over_the_wall_clock() -> None:
    result = ToolResult.ok(1)
    result.duration_ms = 1.5
    now = datetime.now(UTC)
    context = ExecutionContext(working_dir=".")

    record = ToolExecution(
        tool_name="t", parameters={}, context=context, result=result, started_at=now, completed_at=now
    )

    assert record.duration_ms == json.loads(record.model_dump_json())["duration_ms"] == 1.5


def test_terminal_statuses_are_those_that_nothing_follows() -> None:
    assert set(ExecutionStatus) - TERMINAL == {"queued", "running", "awaiting_approval"}


def test_ids_are_version_seven_in_the_order_of_time() -> None:
    before = time.time()
    ids = [new_id() for _ in range(1000)]
    after = time.time()

    assert len(set(ids)) == 1000
    assert {(uuid.UUID(each).version, uuid.UUID(each).variant) for each in ids} == {(7, uuid.RFC_4122)}
    assert [each[:18] for each in ids] == sorted(each[:18] for each in ids), "also within a millisecond"
    assert before - 0.002 <= id_time(ids[0]) <= id_time(ids[-1]) <= after + 0.002


def test_an_execution_knows_when_its_id_was_made_and_how_large_it_is() -> None:
    new = NewExecution(
        id="01920000-0000-7000-8000-000000000000",
        tool="T",
        tool_key="T@1",
        tool_version="1.0.0",
        tool_digest="d",
        category="other",
        parameters='{"a":1}',
        context="{}",
        timeout=1,
        timeout_source="tool",
        soft_time_limit=1,
        time_limit=2,
    )
    outcome = Outcome(id=new.id, attempt=1, token="t", status=ExecutionStatus.FAILED, output="abc", error="de")

    assert new.issued_at == 0x019200000000 / 1000
    assert (new.size, outcome.size) == (7 + 2 + 2, 3 + 2 + 2)


@pytest.mark.parametrize(
    ("name", "type", "sensitive", "is_hidden"),
    [
        ("password", "string", None, True),
        ("db_password", "string", None, True),
        ("api_key", "string", None, True),
        ("apiKey", "string", None, True),
        ("clientSecret", "string", None, True),
        ("nextPageToken", "string", None, False),
        ("access_token", "string", None, True),
        ("token", "string", None, True),
        ("credentials", "object", None, True),
        ("page_token", "string", None, False),
        ("max_tokens", "integer", None, False),
        ("secret", "boolean", None, False),
        ("key", "string", None, False),
        ("passwords_file", "string", None, False),
        ("password", "string", False, False),
        ("note", "string", True, True),
    ],
)
def test_a_parameter_is_sensitive_if_its_tool_says_so_or_else_its_name(
    name: str, type: str, sensitive: bool | None, is_hidden: bool
) -> None:
    tool = spec(parameter(name, sensitive=sensitive).model_copy(update={"type": type}))

    assert tool.hidden({name: "x"}) == [name] * is_hidden
