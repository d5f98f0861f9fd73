"""Executions as rows and as JSON: the one way that every command shows them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from forge_tools.cli.moments import compact, iso, took
from forge_tools.cli.tables import Column, table
from forge_tools.records import ExecutionRecord, ExecutionStatus

SHOWN_ID = 23
"""Characters of an id in tables: enough to be unique among calls of one millisecond, and a prefix that `show` takes."""

_STYLES = {
    ExecutionStatus.SUCCEEDED: "green",
    ExecutionStatus.RUNNING: "cyan",
    ExecutionStatus.QUEUED: "cyan",
    ExecutionStatus.AWAITING_APPROVAL: "yellow",
    ExecutionStatus.CANCELLED: "yellow",
    ExecutionStatus.REJECTED: "yellow",
}
_LEFT_OUT = frozenset({"output", "context", "error_details", "metadata"})
"""What `history` leaves to `show`: it may be megabytes."""


DOCUMENT_FIELDS = (*(field.name for field in fields(ExecutionRecord)), "queue_wait_ms")
"""The names in `document`, in its order."""


def styled(status: ExecutionStatus) -> Text:
    """A status in its colour."""
    return Text(status.value, style=_STYLES.get(status, "red"))


def executions_table(records: Sequence[ExecutionRecord], width: int, now: datetime | None = None) -> Table:
    """A line per execution; what went wrong gets the room that is left."""
    columns = [
        Column("id"),
        Column("queued (UTC)"),
        Column("tool", is_flexible=True),
        Column("status"),
        Column("took", is_number=True),
    ]
    is_wide = width >= 100
    if is_wide:
        columns.append(Column("what", is_flexible=True))
    rows: list[list[str | Text]] = []
    for record in records:
        row: list[str | Text] = [
            record.id[:SHOWN_ID],
            compact(record.queued_at, now),
            record.tool,
            styled(record.status),
            took(record.duration_ms),
        ]
        rows.append([*row, _what(record)] if is_wide else row)
    return table(columns, rows)


def summary(values: Mapping[str, Any]) -> dict[str, Any]:
    """One line of `history --output json`: a document without what may be megabytes."""
    return {name: value for name, value in values.items() if name not in _LEFT_OUT}


def document(record: ExecutionRecord) -> dict[str, Any]:
    """One execution as JSON: the columns of the view `tool_executions`, times in ISO 8601 UTC, and the queue wait."""
    values = {name: iso(value) if isinstance(value, datetime) else value for name, value in asdict(record).items()}
    return {**values, "queue_wait_ms": queue_wait_ms(record)}


def queue_wait_ms(record: ExecutionRecord) -> float | None:
    """How long it waited before its last body started; None where none did."""
    if record.started_at is None:
        return None
    return round((record.started_at - record.queued_at).total_seconds() * 1000, 3)


def shown_value(value: Any) -> str:
    """A value as a cell has room for it."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _what(record: ExecutionRecord) -> str:
    if record.error:
        return record.error
    replayed = f"(replay of {record.replay_of[:SHOWN_ID]}) " if record.replay_of else ""
    return replayed + " ".join(f"{name}={shown_value(value)}" for name, value in record.parameters.items())
