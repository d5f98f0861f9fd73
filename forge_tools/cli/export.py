"""`forge-tools export`: history as a file, oldest first, however long it is."""

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from forge_tools.cli import filters
from forge_tools.cli.database import with_store
from forge_tools.cli.executions import document
from forge_tools.cli.face import Face, OutputOption, face_of
from forge_tools.cli.lazy import command_app
from forge_tools.cli.moments import compact
from forge_tools.records import ExecutionRecord
from forge_tools.storage import Store

app = command_app()


class Format(StrEnum):
    """How rows are written."""

    JSONL = "jsonl"
    CSV = "csv"


@app.command()
def export(  # noqa: PLR0913 one option a filter
    context: typer.Context,
    *,
    format: Annotated[Format, typer.Option(help="An object a line, or comma-separated values.")] = Format.JSONL,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to; by default the standard output.")] = None,
    tool: filters.ToolOption = None,
    category: filters.CategoryOption = None,
    status: filters.StatusOption = None,
    agent: filters.AgentOption = None,
    session: filters.SessionOption = None,
    queue: filters.QueueOption = None,
    since: filters.SinceOption = None,
    until: filters.UntilOption = None,
    error_code: filters.CodeOption = None,
    error: filters.ErrorOption = None,
    output: OutputOption = None,
) -> None:
    """Write executions with all that is kept of them, oldest first, as they are at the start of the command.

    A file appears whole or not at all.
    """
    chosen = filters.given(
        tool=tool,
        category=category,
        status=status,
        agent_id=agent,
        session_id=session,
        queue=queue,
        since=since,
        until=until,
        error_code=error_code,
        error_text=error,
    )
    face = face_of(context)

    async def write(store: Store) -> int:
        count = 0
        with _opened(to) as stream, _progress(face, shown=to is not None) as told:
            rows = _Rows(stream, format)
            async for page in store.history.pages(**chosen):
                rows.add(page)
                count += len(page)
                told(count, page[-1])
        return count

    with _quiet_when_nobody_reads():
        count = with_store(write)
        if face.is_json and to is not None:
            face.document({"executions": count, "file": str(to)})
        elif to is not None:
            face.note(f"{count:,} executions in {to}")


class _Rows:
    """Writes records in one of the formats; the columns of CSV are those of the first row, nested values as JSON."""

    def __init__(self, stream: TextIO, format: Format) -> None:
        self._stream = stream
        self._csv = csv.writer(stream) if format is Format.CSV else None
        self._is_begun = False

    def add(self, records: "list[ExecutionRecord] | Any") -> None:
        for record in records:
            row = document(record)
            if self._csv is None:
                self._stream.write(json.dumps(row, separators=(",", ":"), ensure_ascii=False, default=str) + "\n")
                continue
            if not self._is_begun:
                self._csv.writerow(row)
                self._is_begun = True
            self._csv.writerow([_cell(value) for value in row.values()])


def _cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else value


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """The file under another name until it is whole; the standard output as it is."""
    if path is None:
        yield sys.stdout
        return
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            yield stream
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _progress(face: Face, *, shown: bool) -> Iterator[Any]:
    """A line on the error stream that tells how far it is; nothing where nobody looks."""
    if not shown or not face.err.is_terminal:
        yield lambda count, last: None
        return
    columns = (TextColumn("{task.fields[count]:,} executions"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=face.err, transient=True) as progress:
        task = progress.add_task("", total=None, count=0)
        yield lambda count, last: progress.update(
            task, count=count, description=f"queued {compact(last.queued_at)} ago"
        )


@contextmanager
def _quiet_when_nobody_reads() -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        with suppress(OSError):
            sys.stdout.close()
        raise typer.Exit(1) from None
