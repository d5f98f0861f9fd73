"""Executions as rows, as JSON, and as what a call waits for."""

import io
import json
from datetime import UTC, datetime, timedelta

from rich.console import Console

from forge_tools.cli.history import LISTED, Rows, document
from forge_tools.cli.live import describe
from forge_tools.cli.text import as_json, facts, table
from forge_tools.model import ExecutionRecord, ExecutionStatus

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def record(**fields: object) -> ExecutionRecord:
    values: dict[str, object] = {
        "id": "01a20085-ebef-714c-9e2e-1760aec55ed5",
        "tool": "Grep",
        "tool_version": "1.0.0",
        "category": "file",
        "status": ExecutionStatus.SUCCEEDED,
        "parameters": {"pattern": "x" * 200},
        "context": {},
        "agent_id": None,
        "session_id": None,
        "queue": "default",
        "lane": "async",
        "timeout": 120.0,
        "timeout_source": "default",
        "soft_time_limit": 125.0,
        "time_limit": 127.0,
        "attempt": 1,
        "max_attempts": 3,
        "queued_at": NOW - timedelta(seconds=5),
        "started_at": NOW - timedelta(seconds=4.5),
        "completed_at": NOW,
        "duration_ms": 4500.0,
        "worker_id": "w",
        "hostname": "host-1",
        "output": "many\nlines",
        "error": None,
        "error_code": None,
        "error_details": None,
        "metadata": {},
    }
    return ExecutionRecord(**(values | fields))


def drawn(width: int, *records: ExecutionRecord) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table(LISTED[Rows.EXECUTIONS].columns, records, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_row_fits_80_columns_whatever_the_tool_is_called() -> None:
    lines = drawn(80, record(), record(tool="T" * 200), record(status=ExecutionStatus.AWAITING_APPROVAL))
    assert max(map(len, lines)) <= 80
    assert len(lines) == 5
    assert all(line.startswith("01a20085-ebef-714c-9e2e ") for line in lines[2:])


def test_a_wide_row_says_what_went_wrong_on_one_line() -> None:
    lines = drawn(120, record(status=ExecutionStatus.FAILED, error="it broke\nbadly\x1b[2J"))
    assert len(lines) == 3
    assert "it broke badly\\x1b[2J" in lines[2]


def test_json_has_utc_times_and_the_queue_wait() -> None:
    shown = json.loads(as_json(document(record())))
    assert shown["queued_at"] == "2026-05-01T11:59:55.000Z"
    assert shown["queue_wait_ms"] == 500.0
    assert document(record(started_at=None))["queue_wait_ms"] is None


def test_a_waiting_call_says_what_it_waits_for() -> None:
    queued = record(status=ExecutionStatus.QUEUED, attempt=0)
    assert describe(queued) == "Grep waits in queue default (async lane)"
    assert describe(record(status=ExecutionStatus.QUEUED, attempt=1)).endswith(", attempt 2")
    assert describe(record(status=ExecutionStatus.RUNNING)) == "Grep runs on host-1"
    assert describe(record(status=ExecutionStatus.AWAITING_APPROVAL)) == "Grep awaiting approval"


def test_a_stored_name_is_neither_markup_nor_moves_the_cursor() -> None:
    out = Console(file=io.StringIO(), width=80)
    out.print(facts([("[/x]\x1b[31m", "value"), ("[bold]b[/]", "[i]v[/]")]))
    assert isinstance(out.file, io.StringIO)
    assert [line.split() for line in out.file.getvalue().splitlines()] == [
        ["[/x]\\x1b[31m", "value"],
        ["[bold]b[/]", "[i]v[/]"],
    ]
