"""How our programs log."""

import io
import json
import logging
import re
from dataclasses import replace

import pytest

from forge_tools.config import Settings
from forge_tools.environment import log_format
from forge_tools.logs import Form, set_up
from forge_tools.model.scope import SCOPE, CallScope
from tests.unit.workers.test_recorder import CLAIM


def logged(form: Form) -> str:
    stream = io.StringIO()
    set_up("INFO", form, stream)
    scope = CallScope(execution_id="e-1", attempt=2)
    scope.tool, scope.agent_id, scope.session_id = "Grep", "ada", "s-1"
    token = SCOPE.set(scope)
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("library").exception("with %s", "arguments", extra={"count": 7, "what": {1}})
    finally:
        SCOPE.reset(token)
    return stream.getvalue()


def test_a_record_of_a_call_says_whose_it_is(own_logging: None) -> None:
    first, *rest = logged("text").splitlines()

    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ERROR library: with arguments$", first)
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == (
        "ValueError: no count=7 what={1} execution_id='e-1' attempt=2 tool='Grep' agent_id='ada' session_id='s-1'"
    )


def test_as_json_a_record_is_one_line(own_logging: None) -> None:
    [line] = logged("json").splitlines()
    told = json.loads(line)

    facts = {"execution_id": "e-1", "attempt": 2, "tool": "Grep", "agent_id": "ada", "session_id": "s-1"}
    assert told | facts | {"message": "with arguments", "logger": "library", "count": 7, "what": "{1}"} == told
    assert told["at"].endswith("+00:00")
    assert told["exception"].endswith("ValueError: no")


def test_the_coloured_copy_of_a_message_that_uvicorn_adds_is_left_out(own_logging: None) -> None:
    stream = io.StringIO()
    set_up("INFO", "text", stream)
    logging.getLogger("uvicorn.error").info("Started", extra={"color_message": "\x1b[36mStarted\x1b[0m"})

    assert stream.getvalue().endswith(" INFO uvicorn.error: Started\n")


def test_what_an_engine_logs_of_a_claim_says_the_same_whatever_its_row_holds() -> None:
    claim = replace(CLAIM, id="e-1", attempt=2, tool="Grep", context='{"agent_id": "ada", "session_id": null}')

    assert claim.facts() == {"execution_id": "e-1", "attempt": 2, "tool": "Grep", "agent_id": "ada"}
    assert replace(claim, context="no JSON").facts()["tool"] == "Grep"


def test_the_form_is_known_before_the_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("json", "text"):
        monkeypatch.setenv("FORGE_LOG_FORMAT", value)
        assert log_format() == Settings.load().log_format == value
