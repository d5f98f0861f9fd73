"""Executions and outcomes as storable values."""

import json
from dataclasses import fields

import pytest

from forge_tools.model import ExecutionRecord, ExecutionStatus, new_id
from forge_tools.model.execution import NewExecution, Outcome, is_id
from forge_tools.storage.history.view import tool_executions
from forge_tools.storage.rows import ASKED, OUTCOME, asked_by_name, clean, late_detail
from tests.contract.calls import call

SOME_ID = "01a00000-0000-7000-8000-00000000abcd"


def columns(**changes: object) -> dict[str, object]:
    return asked_by_name(call(**changes))


def test_a_call_that_hides_nothing_has_nothing_encrypted() -> None:
    values = columns(parameters='{"a":1}')
    assert (values["parameters"], values["encrypted_names"]) == ('{"a":1}', None)


def test_what_is_encrypted_is_given_with_the_names_of_what_it_hides() -> None:
    values = columns(parameters='{"a":1,"token":"[redacted]"}', encrypted="1.k.x", encrypted_names=("token",))
    assert values["parameters"] == '{"a":1,"token":"[redacted]"}'
    assert json.loads(str(values["encrypted_names"])) == ["token"]


@pytest.mark.parametrize(("text", "stored"), [(None, None), ("plain", "plain"), ("é\n", "é\n"), ("a\0", "a\\x00")])
def test_texts_are_cleaned_only_where_they_need_it(text: str | None, stored: str | None) -> None:
    assert clean(text) == stored


@pytest.mark.parametrize("text", ["", "x", SOME_ID.upper(), SOME_ID[:-1], SOME_ID + "\n", SOME_ID.replace("-", "")])
def test_only_a_lower_case_uuid_is_an_id(text: str) -> None:
    assert not is_id(text)
    assert is_id(new_id())


def test_a_long_late_output_is_cut() -> None:
    outcome = Outcome(id=new_id(), attempt=1, token="t", status=ExecutionStatus.SUCCEEDED, output="x" * 1_000_000)
    assert len(late_detail(outcome)) < 11_000


def test_what_a_record_gives_is_a_column_or_steers_the_statement() -> None:
    assert {field.name for field in fields(NewExecution)} - {*ASKED} == {"encrypted", "reply_key", "claim", "replay"}
    steers = {"id", "attempt", "token", "retry_in", "give_back"}
    assert {field.name for field in fields(Outcome)} - {*OUTCOME} == steers


def test_what_history_shows_is_a_column_of_its_view() -> None:
    assert {field.name for field in fields(ExecutionRecord)} <= {*tool_executions.c.keys()}
