"""A row of history becomes a call of today: what it keeps, what is decided anew, what has to be given again."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from forge_tools.client.call import Call
from forge_tools.client.links import repeated
from forge_tools.errors import InvalidCallError
from forge_tools.model import (
    ExecutionContext,
    ExecutionRecord,
    ExecutionStatus,
    ToolCategory,
    ToolParameter,
    ToolSpec,
    new_id,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = ToolSpec(
    name="Deploy",
    description="Deploy a site.",
    category=ToolCategory.OTHER,
    parameters=(
        ToolParameter(name="site", type="string", description="Which.", aliases=("name",)),
        ToolParameter(name="token", type="string", description="Secret.", sensitive=True),
    ),
)


def record(**changes: Any) -> ExecutionRecord:
    context = ExecutionContext(working_dir="/srv", agent_id="ann", session_id="s1", metadata={"trace": "t"})
    plain = ExecutionRecord(
        id=new_id(),
        tool="Deploy",
        tool_version="1.0.0",
        category="other",
        status=ExecutionStatus.SUCCEEDED,
        parameters={"site": "docs"},
        context=context.model_dump(),
        agent_id="ann",
        session_id="s1",
        queue="default",
        lane="async",
        timeout=120.0,
        timeout_source="default",
        soft_time_limit=125,
        time_limit=127,
        attempt=1,
        max_attempts=1,
        queued_at=NOW,
        started_at=NOW,
        completed_at=NOW,
        duration_ms=1.0,
        worker_id=None,
        hostname=None,
        output=None,
        error=None,
        error_code=None,
        error_details=None,
        metadata={},
    )
    return replace(plain, **changes)


def call_of(one: ExecutionRecord, parameters: dict[str, Any] | None = None, **options: Any) -> Call:
    return repeated(one, options.pop("spec", SPEC), parameters or {}, options.pop("dry_run", None), options)


def test_who_asked_where_and_for_what_stays() -> None:
    call = call_of(record())

    assert (call.name, call.parameters, call.queue, call.idempotency_key) == ("Deploy", {"site": "docs"}, None, None)
    assert call.effective_context.model_dump() == record().context


@pytest.mark.parametrize(
    ("source", "asked"),
    [("default", None), ("tool", None), ("call", 7.0), ("operator maximum (asked 7s by call)", 7.0), ("rejected", 7.0)],
)
def test_a_timeout_is_asked_for_if_it_was(source: str, asked: float | None) -> None:
    one = record(timeout_source=source, context={**record().context, "timeout": 7.0})

    assert call_of(one).effective_context.explicit_timeout == asked


@pytest.mark.parametrize(
    ("queue", "kept"), [("default", None), ("background", "background"), ("gpu", "gpu"), ("host.alpha", None)]
)
def test_a_queue_of_its_own_is_kept_and_a_host_is_found_anew(queue: str, kept: str | None) -> None:
    assert call_of(record(queue=queue)).queue == kept


@pytest.mark.parametrize(("was", "asked", "is_now"), [(True, None, True), (True, False, False), (False, True, True)])
def test_a_rehearsal_stays_one_unless_said_otherwise(was: bool, asked: bool | None, is_now: bool) -> None:
    one = record(context={**record().context, "dry_run": was})

    assert call_of(one, dry_run=asked).effective_context.dry_run is is_now


def test_other_values_come_by_name_or_alias_and_fields_of_the_call_as_keywords() -> None:
    call = call_of(record(), {"name": "blog"}, queue="background", idempotency_key="again")

    assert (call.parameters, call.queue, call.idempotency_key) == ({"site": "blog"}, "background", "again")


def test_a_name_and_its_alias_at_once_are_left_for_the_checks_to_refuse() -> None:
    assert call_of(record(), {"name": "blog", "site": "news"}).parameters == {"name": "blog", "site": "news"}


def test_none_takes_out_what_the_tool_no_longer_knows() -> None:
    one = record(parameters={"site": "docs", "colour": "red"})

    assert call_of(one, {"colour": None}).parameters == {"site": "docs"}
    assert call_of(one, {"site": None, "colour": "blue"}).parameters == {"site": None, "colour": "blue"}


@pytest.mark.parametrize(
    "hidden",
    ["[redacted]", "Bearer [redacted]", {"auth": ["x", {"token": "[redacted]"}]}, ["[redacted]"], {"a [redacted]": 1}],
)
def test_what_history_hides_has_to_be_given_again(hidden: Any) -> None:
    one = record(parameters={"site": "docs", "token": hidden})

    with pytest.raises(InvalidCallError, match=f"give token again to replay execution {one.id}") as caught:
        call_of(one)
    assert caught.value.details == ["Missing value, kept secret: token"]
    assert call_of(one, {"token": "t"}).parameters == {"site": "docs", "token": "t"}


def test_a_context_with_hidden_metadata_has_to_be_given_again() -> None:
    one = record(context={**record().context, "metadata": {"api_key": "[redacted]"}})

    with pytest.raises(InvalidCallError, match=f"the metadata of execution {one.id} had such"):
        call_of(one)
    context = ExecutionContext(working_dir=".", metadata={"api_key": "k"})
    assert call_of(one, context=context).effective_context == context


@pytest.mark.parametrize("status", [ExecutionStatus.QUEUED, ExecutionStatus.RUNNING, ExecutionStatus.AWAITING_APPROVAL])
def test_what_is_not_over_is_only_rehearsed(status: ExecutionStatus) -> None:
    one = record(status=status)

    with pytest.raises(InvalidCallError, match=f"is {status.value}: to run it again now"):
        call_of(one)
    assert call_of(one, dry_run=True).effective_context.dry_run


def test_a_tool_that_is_gone_and_a_context_of_another_release_are_no_obstacle() -> None:
    one = record(context={"working_dir": "/srv", "colour": "red"})

    call = call_of(one, {"name": "blog"}, spec=None)

    assert call.parameters == {"site": "docs", "name": "blog"}
    assert call.effective_context.working_dir == "/srv"
