"""What `history` lists and `export` writes: executions, their attempts, or what was done to them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from forge_tools.cli import executions
from forge_tools.cli.executions import SHOWN_ID, shown_value, styled
from forge_tools.cli.moments import compact, iso, took
from forge_tools.cli.tables import Column, table
from forge_tools.records import TERMINAL, AttemptRecord, EventRecord, ExecutionRecord, id_time
from forge_tools.storage.history import History
from forge_tools.storage.paging import Page, Stretch

WIDE = 100
"""Columns of a terminal from which there is room for errors and details."""

Record = ExecutionRecord | AttemptRecord | EventRecord


class Rows(StrEnum):
    """What a row is of."""

    EXECUTIONS = "executions"
    ATTEMPTS = "attempts"
    EVENTS = "events"


OfOption = Annotated[Rows, typer.Option("--of", help="What to list: calls, each start of a body, or what was done.")]
KindOption = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Only events of this kind: cancel, requeue, lost, replay, prune, ..."),
]


@dataclass(frozen=True, slots=True)
class Listed:
    """How one kind of rows is read and shown. `names` are its columns, `moment` is what it is in order of."""

    page: Callable[..., Awaitable[Page[Any]]]
    pages: Callable[..., AsyncIterator[Stretch[Any]]]
    document: Callable[[Any], dict[str, Any]]
    table: Callable[[Sequence[Any], int], Table]
    names: Sequence[str]
    moment: Callable[[Any], datetime]


def listed(history: History, rows: Rows) -> Listed:
    """What to read rows of this kind with."""
    match rows:
        case Rows.ATTEMPTS:
            return Listed(history.list_attempts, history.attempt_pages, _attempt, attempts_table, _ATTEMPT, _asked_at)
        case Rows.EVENTS:
            return Listed(history.list_events, history.event_pages, _event, events_table, _EVENT, _happened_at)
        case Rows.EXECUTIONS:
            document, names = executions.document, executions.DOCUMENT_FIELDS
            return Listed(history.list, history.pages, document, executions.executions_table, names, _queued_at)


def narrowed(filters: dict[str, Any], rows: Rows, kind: str | None) -> dict[str, Any]:
    """The filters, with the one that only events have.

    Raises:
        BadParameter: for one that these rows cannot have.
    """
    if kind is not None and rows is not Rows.EVENTS:
        raise typer.BadParameter("Only events have a kind: --of events.", param_hint="--kind")
    if rows is Rows.ATTEMPTS and filters.get("status", "lost") not in TERMINAL:
        raise typer.BadParameter(f"Attempts have ended: {', '.join(sorted(TERMINAL))}.", param_hint="--status")
    return filters if kind is None else filters | {"kind": kind}


def attempts_table(records: Sequence[AttemptRecord], width: int) -> Table:
    """A line an attempt."""
    columns = [
        *(Column("id"), Column("#", is_number=True), Column("ended (UTC)"), Column("tool", is_flexible=True)),
        *(Column("status"), Column("took", is_number=True)),
    ]
    if width >= WIDE:
        columns += [Column("host, process"), Column("error", is_flexible=True)]
    return table(columns, (_attempt_cells(one)[: len(columns)] for one in records))


def events_table(records: Sequence[EventRecord], width: int) -> Table:
    """A line an event."""
    columns = [
        *(Column("at (UTC)"), Column("kind"), Column("by", is_flexible=True), Column("id")),
        Column("tool", is_flexible=True),
    ]
    if width >= WIDE:
        columns.append(Column("detail", is_flexible=True))
    return table(columns, (_event_cells(one)[: len(columns)] for one in records))


def _attempt_cells(one: AttemptRecord) -> list[str | Text]:
    where = f"{one.hostname or '-'} {one.pid or ''}"
    return [
        *(one.execution_id[:SHOWN_ID], str(one.attempt), compact(one.completed_at), one.tool),
        *(styled(one.status), took(one.duration_ms), where, one.error or ""),
    ]


def _event_cells(one: EventRecord) -> list[str | Text]:
    detail = " ".join(f"{name}={shown_value(value)}" for name, value in one.detail.items())
    return [compact(one.at), one.kind, one.actor, one.execution_id[:SHOWN_ID], one.tool or "-", detail]


_ATTEMPT = ("execution_id", *(field.name for field in fields(AttemptRecord) if field.name != "execution_id"))
_EVENT = (
    "id",
    "execution_id",
    *(field.name for field in fields(EventRecord) if field.name not in {"id", "execution_id"}),
)


def _attempt(record: AttemptRecord) -> dict[str, Any]:
    return _document(record, _ATTEMPT)


def _event(record: EventRecord) -> dict[str, Any]:
    return _document(record, _EVENT)


def _document(record: Record, names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in names}
    return {name: iso(value) if isinstance(value, datetime) else value for name, value in values.items()}


def _queued_at(record: ExecutionRecord) -> datetime:
    return record.queued_at


def _asked_at(record: AttemptRecord) -> datetime:
    return datetime.fromtimestamp(id_time(record.execution_id), UTC)


def _happened_at(record: EventRecord) -> datetime:
    return record.at
