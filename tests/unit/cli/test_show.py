"""What happened to an execution, as `show` displays it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from forge_tools.cli.show import timeline
from forge_tools.model import ExecutionStatus
from forge_tools.model.history import Attempt, Event
from tests.unit.cli.test_executions_shown import record

START = datetime(2026, 5, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def attempt(number: int, started: float | None, ended: float, **fields: Any) -> Attempt:
    values: dict[str, Any] = {
        "attempt": number,
        "status": ExecutionStatus.SUCCEEDED,
        "worker_id": "w",
        "hostname": "host-1",
        "pid": 11,
        "started_at": None if started is None else at(started),
        "completed_at": at(ended),
        "duration_ms": None if started is None else (ended - started) * 1000,
        "error": None,
        "error_code": None,
    }
    return Attempt(**values | fields)


def said(attempts: list[Attempt], events: list[Event], **fields: object) -> list[str]:
    return [text.plain for _, text in timeline(record(queued_at=START, **fields), attempts, events)]


def test_attempts_and_events_stand_in_the_order_in_which_they_happened() -> None:
    lost = attempt(1, 1, 20, status=ExecutionStatus.LOST, duration_ms=None, error="host\ndied", error_code="LOST")
    requeue = Event(at=at(20), kind="requeue", actor="recovery", detail={"reason": "silent", "lane": ""})
    assert said([lost, attempt(2, 21, 22)], [requeue]) == [
        "queued",
        "attempt 1 started on host-1, process 11",
        "requeue by recovery (reason: silent)",
        "attempt 1 lost, LOST: host died",
        "attempt 2 started on host-1, process 11",
        "attempt 2 succeeded after 1.0 s",
    ]


def test_what_never_started_has_an_end_alone() -> None:
    end = attempt(1, None, 5, status=ExecutionStatus.CANCELLED, error="Cancelled by ada", error_code="CANCELLED")
    cancel = Event(at=at(5), kind="cancel", actor="ada\x1b[2J", detail={"reason": ""})
    assert said([end], [cancel], started_at=None) == [
        "queued", "cancel by ada\\x1b[2J", "cancelled, CANCELLED: Cancelled by ada"
    ]  # fmt: skip


def test_what_runs_has_no_end_yet() -> None:
    running = {"started_at": at(3), "completed_at": None, "attempt": 2, "status": ExecutionStatus.RUNNING}
    failed = attempt(1, 1, 2, status=ExecutionStatus.FAILED, error="x")
    assert said([failed], [], **running)[-2:] == ["attempt 1 failed after 1.0 s: x", "attempt 2 started on host-1"]
