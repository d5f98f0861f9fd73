"""Attempts and events as lines of `history`."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer
from rich.console import Console
from rich.table import Table

from forge_tools.cli.history import LISTED, Rows, refuse_unfitting
from forge_tools.cli.text import table
from forge_tools.model import ExecutionStatus
from forge_tools.model.history import AttemptRecord, EventRecord

ID = "01a20085-ebef-714c-9e2e-1760aec55ed5"
NOW = datetime.now(UTC)
OF_WHOM: dict[str, Any] = {
    "execution_id": ID, "tool": "Grep", "category": "file", "agent_id": "a", "session_id": "s"
}  # fmt: skip
ATTEMPT = AttemptRecord(
    **OF_WHOM,
    queue="default",
    attempt=2,
    status=ExecutionStatus.FAILED,
    final=True,
    worker_id="w",
    hostname="host-1",
    pid=11,
    started_at=NOW,
    completed_at=NOW + timedelta(seconds=1),
    duration_ms=1000.0,
    error="disk\x1b[2J full",
    error_code="DISK",
    output=None,
    error_details=None,
    metadata={},
)
EVENT = EventRecord(**OF_WHOM, id=7, at=NOW, kind="cancel", actor="ada\x1b[31m", detail={"reason": "slow", "n": 3})


def drawn(shown: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(shown)
    return str(console.file.getvalue())


@pytest.mark.parametrize("width", [80, 140])
def test_an_attempt_is_a_line_with_its_error_where_there_is_room(width: int) -> None:
    text = drawn(table(LISTED[Rows.ATTEMPTS].columns, [ATTEMPT], width), width)
    assert all(word in text for word in (ID[:23], " 2 ", "Grep", "failed", "1.0 s"))
    assert ("disk\\x1b[2J" in text, "host-1 11" in text) == (True, width == 140)


@pytest.mark.parametrize("width", [80, 140])
def test_an_event_is_a_line_with_its_detail_where_there_is_room(width: int) -> None:
    text = drawn(table(LISTED[Rows.EVENTS].columns, [EVENT], width), width)
    assert all(word in text for word in ("cancel", "ada\\x1b[31m", ID[:23], "Grep"))
    assert "reason=slow" in text


def test_a_page_goes_on_behind_its_last_row() -> None:
    assert (ATTEMPT.cursor, EVENT.cursor) == (f"{ID}:2", "7")


def test_filters_that_such_rows_cannot_have_are_refused() -> None:
    refuse_unfitting({"tool": "Grep", "kind": "cancel", "status": ExecutionStatus.QUEUED}, Rows.EVENTS)
    for rows in (Rows.ATTEMPTS, Rows.EXECUTIONS):
        with pytest.raises(typer.BadParameter, match="--of events"):
            refuse_unfitting({"kind": "cancel"}, rows)
    with pytest.raises(typer.BadParameter, match="Attempts have ended: cancelled"):
        refuse_unfitting({"status": ExecutionStatus.RUNNING}, Rows.ATTEMPTS)
