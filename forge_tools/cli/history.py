"""`forge-tools history`: past calls, newest first; how executions, attempts and events look in rows and as JSON."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Option

from forge_tools.cli.face import UNBOUNDED, App, Face, WideOption
from forge_tools.cli.selection import ALL, Chosen, again, filtered
from forge_tools.cli.services import await_stack, with_history
from forge_tools.cli.text import (
    WIDE,
    Column,
    as_json,
    as_text,
    clock,
    compact,
    flexible,
    from_here,
    iso,
    number,
    one_line,
    since,
    table,
    took,
)
from forge_tools.config import Settings
from forge_tools.errors import ErrorCode
from forge_tools.model.diagnosis import Diagnosis
from forge_tools.model.execution import TERMINAL, ExecutionStatus, id_time, is_id
from forge_tools.model.history import Attempt, AttemptRecord, EventRecord, ExecutionRecord
from forge_tools.storage.history.history import History
from forge_tools.storage.history.pages import Page

PATIENCE_SECONDS = 2.0
"""How long people wait for a page that no index finds; then the page says where to continue. Programs get whole pages."""

SHOWN_ID = 23
"""How many characters of an id tables show: unique among calls of one millisecond, and a prefix that `show` accepts."""

_COLOURS = {
    ExecutionStatus.SUCCEEDED: "green",
    **dict.fromkeys((ExecutionStatus.RUNNING, ExecutionStatus.QUEUED), "cyan"),
    **dict.fromkeys((ExecutionStatus.AWAITING_APPROVAL, ExecutionStatus.CANCELLED), "yellow"),
    ExecutionStatus.REJECTED: "yellow",
}
_LARGE = frozenset({"output", "context", "error_details", "metadata"})
"""Columns that only `show` prints: they may be megabytes."""

_FREE = _LARGE | {"parameters", "error", "diagnosis"}
"""Columns that are cut before those that identify a row."""

app = App()

Record = ExecutionRecord | AttemptRecord | EventRecord


class Rows(StrEnum):
    EXECUTIONS = "executions"
    ATTEMPTS = "attempts"
    EVENTS = "events"


OfOption = Annotated[Rows, Option("--of", help="What to list: calls, each start of a body, or what was done.")]


@app.command()
@filtered(*ALL)
def history(
    face: Face,
    context: typer.Context,
    *,
    of: OfOption = Rows.EXECUTIONS,
    chosen: Chosen,
    limit: Annotated[int, Option(min=1, max=10_000, help="How many.")] = 50,
    wide: WideOption = False,
    columns: Annotated[
        str | None, Option(metavar="A,B", help="Only these, by the names that they have as JSON or in the table.")
    ] = None,
    before: Annotated[
        str | None, Option(metavar="ID", help="Only older ones: the next page, as the last line of this one says.")
    ] = None,
) -> None:
    """List executions, newest first, or attempts or events. As JSON it is one object a line, without outputs.

    With --of attempts, filters by status, error and duration apply to the attempt. With --of events, --since and --until
    apply to the event, and all other filters to its execution.
    """
    rows = LISTED[of]
    refuse_unfitting(chosen, of)
    patience = None if face.is_json else PATIENCE_SECONDS

    async def read(known: History) -> Page[Any]:
        last = before
        if before and of is Rows.EXECUTIONS and not is_id(before.lower()):
            last = (await known.get(before)).id  # a prefix of the id suffices
        page: Page[Any] = await getattr(known, rows.page)(**chosen, limit=limit, before=last, patience=patience)
        return page

    await_stack(face, settings := Settings.load())
    page = with_history(read, settings)
    if face.is_json:
        for record in page:
            face.line({name: value for name, value in document(record).items() if name not in _LARGE})
        return
    face.out.width = UNBOUNDED if wide else face.out.width
    if page and columns is not None:
        face.out.print(_only(of, columns.split(","), page, face.out.width))
    elif page and "error_text" in chosen and of is not Rows.EVENTS:
        for one in page:
            _print_failure(face, one)
    elif page:
        face.out.print(table(rows.columns, page, face.out.width))
    else:
        _say_nothing(face, of, page.older, before, chosen)
    if page.older is not None:
        face.note(f"Older ones: {again(context, before=page.older)}")


def _print_failure(face: Face, one: ExecutionRecord | AttemptRecord) -> None:
    """Print the whole error, regardless of the width of the terminal."""
    id_, at = (one.id, one.queued_at) if isinstance(one, ExecutionRecord) else (one.execution_id, one.completed_at)
    head = Text.assemble(f"{id_[:SHOWN_ID]}  {compact(at)}  ", (one_line(one.tool), "bold"), "  ", styled(one.status))
    face.out.print(head, soft_wrap=True)
    face.say(f"    {one_line(explained(one))}")


def _only(of: Rows, names: Sequence[str], records: Sequence[Any], width: int) -> Table:
    stored = {name: Column(name, partial(_cell, name), is_flexible=name in _FREE) for name in LISTED[of].names}
    # least=0: who asks for a column gets it at any width.
    known = stored | {one.title: replace(one, least=0) for one in LISTED[of].columns if one.title not in stored}
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is no column. There are: {', '.join(known)}.", param_hint="--columns")
    return table([known[name] for name in names], records, width)


def _cell(name: str, record: Record) -> str:
    value = getattr(record, name)
    if name == "diagnosis" and (found := Diagnosis.read(value)) is not None:
        return from_here(found.summary)
    return (iso(value) or "-") if isinstance(value, datetime | None) else as_text(value)


def _say_nothing(face: Face, of: Rows, older: str | None, before: str | None, chosen: Chosen) -> None:
    so_far = " among those looked at so far" if older is not None else ""
    said = f"No{' older' if before else ''} {of.value.removesuffix('s')} matches{so_far}."
    face.say(said if so_far or before or chosen else LISTED[of].nothing, style="dim")


def refuse_unfitting(chosen: Chosen, of: Rows) -> None:
    if "kind" in chosen and of is not Rows.EVENTS:
        raise typer.BadParameter("Only events have a kind: --of events.", param_hint="--kind")
    if of is Rows.ATTEMPTS and chosen.get("status") not in {None, *TERMINAL}:
        raise typer.BadParameter(f"Attempts have ended: {', '.join(sorted(TERMINAL))}.", param_hint="--status")


def document(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in _NAMES[type(record)]}


def styled(status: ExecutionStatus) -> Text:
    return Text(status.value, _COLOURS.get(status, "red"), no_wrap=True)


def explained(one: ExecutionRecord | Attempt) -> str:
    """Say in one line what went wrong; for an unforeseen exception also where it was raised."""
    found = Diagnosis.read(one.diagnosis)
    if found is None or not found.place:
        return one.error or ""
    is_foreseen = one.error_code != ErrorCode.EXECUTION_ERROR
    return from_here(f"{one.error} ({found.place})" if is_foreseen else found.summary)


def _what(one: ExecutionRecord) -> str:
    if one.error:
        return explained(one)
    return (f"(replay of {one.replay_of[:SHOWN_ID]}) " if one.replay_of else "") + _pairs(one.parameters)


def _pairs(values: dict[str, Any]) -> str:
    texts = {name: value if isinstance(value, str) else as_json(value) for name, value in values.items()}
    return " ".join(f"{name}={text if len(text) <= 40 else f'{text[:39]}…'}" for name, text in texts.items())


def _names(record: type[Record], *first: str) -> tuple[str, ...]:
    return (*first, *(one.name for one in fields(record) if one.name not in first))


@dataclass(frozen=True, slots=True)
class Listed:
    """How one kind of rows is read, by which methods of `History`, and shown. `moment` is what they are sorted by."""

    page: str
    pages: str
    names: Sequence[str]
    moment: Callable[[Any], datetime]
    columns: Sequence[Column]
    nothing: str


LISTED = {
    Rows.EXECUTIONS: Listed(
        page="list",
        pages="pages",
        names=(*_names(ExecutionRecord), "queue_wait_ms"),
        moment=lambda one: one.queued_at,
        columns=(
            Column("id", lambda one: one.id[:SHOWN_ID]),
            Column("queued", lambda one: clock(one.queued_at)),
            number("ago", lambda one: since(one.queued_at), least=WIDE),
            flexible("tool", lambda one: one.tool),
            Column("status", lambda one: styled(one.status)),
            number("took", lambda one: took(one.duration_ms)),
            flexible("what", _what),
        ),
        nothing="Nothing was run yet.",
    ),
    Rows.ATTEMPTS: Listed(
        page="list_attempts",
        pages="attempt_pages",
        names=_names(AttemptRecord, "execution_id"),
        moment=lambda one: datetime.fromtimestamp(id_time(one.execution_id), UTC),
        columns=(
            Column("id", lambda one: one.execution_id[:SHOWN_ID]),
            number("#", lambda one: str(one.attempt)),
            Column("ended", lambda one: clock(one.completed_at)),
            number("ago", lambda one: since(one.completed_at), least=WIDE),
            flexible("tool", lambda one: one.tool),
            Column("status", lambda one: styled(one.status)),
            number("took", lambda one: took(one.duration_ms)),
            Column("host, process", lambda one: f"{one.hostname or '-'} {one.pid or ''}", least=WIDE),
            flexible("error", explained),
        ),
        nothing="No attempt has ended yet.",
    ),
    Rows.EVENTS: Listed(
        page="list_events",
        pages="event_pages",
        names=_names(EventRecord, "id", "execution_id"),
        moment=lambda one: one.at,
        columns=(
            Column("at", lambda one: clock(one.at)),
            number("ago", lambda one: since(one.at), least=WIDE),
            Column("kind", lambda one: one.kind),
            flexible("by", lambda one: one.actor),
            Column("id", lambda one: one.execution_id[:SHOWN_ID]),
            flexible("tool", lambda one: one.tool or "-"),
            flexible("detail", lambda one: _pairs(one.detail)),
        ),
        nothing="Nothing was done to any execution yet.",
    ),
}

_NAMES = dict(zip((ExecutionRecord, AttemptRecord, EventRecord), (one.names for one in LISTED.values()), strict=True))
