"""`forge-tools export`: history as a file, oldest first, however long it is."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Protocol, TextIO

import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from forge_tools.cli import filters
from forge_tools.cli.database import with_store
from forge_tools.cli.executions import DOCUMENT_FIELDS, document
from forge_tools.cli.face import Face, OutputOption, face_of, printable
from forge_tools.cli.lazy import command_app
from forge_tools.cli.moments import compact
from forge_tools.errors import ForgeError
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
    slower_than: filters.SlowerOption = None,
    faster_than: filters.FasterOption = None,
    output: OutputOption = None,
) -> None:
    """Write executions with all that is kept of them, oldest first; what is queued meanwhile is left out.

    A file appears whole or not at all.
    """
    chosen = filters.given(context)
    face = face_of(context)

    async def write(store: Store) -> int:
        count = 0
        with _opened(to, face) as stream, _progress(face, shown=to is not None) as told:
            rows = _Rows(stream, format)
            async for page in store.history.pages(**chosen):
                for record in page:
                    rows.add(record)
                count += len(page)
                told(count, page[-1])
        return count

    with _quiet_when_nobody_reads():
        count = with_store(write)
        if face.is_json and to is not None:
            face.document({"executions": count, "file": str(to)})
        elif to is not None:
            face.note(f"{count:,} executions in {to}")


class _Stream(Protocol):
    def write(self, text: str, /) -> object: ...


class _Rows:
    """Writes records in one of the formats; CSV begins with the names of its columns, and has nested values as JSON."""

    def __init__(self, stream: _Stream, format: Format) -> None:
        self._stream = stream
        self._csv = csv.writer(stream) if format is Format.CSV else None
        if self._csv is not None:
            self._csv.writerow(DOCUMENT_FIELDS)

    def add(self, record: ExecutionRecord) -> None:
        row = document(record)
        if self._csv is None:
            self._stream.write(json.dumps(row, separators=(",", ":"), ensure_ascii=False, default=str) + "\n")
        else:
            self._csv.writerow([_cell(row[name]) for name in DOCUMENT_FIELDS])


def _cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else value


class _Terminal:
    """Shows rows without what could harm a terminal."""

    def write(self, row: str, /) -> object:
        return sys.stdout.write(printable(row.rstrip("\r\n")) + "\n")


@contextmanager
def _opened(path: Path | None, face: Face) -> Iterator[_Stream]:
    """Where rows go to. What is there already and is no file, such as a device or a pipe, is written to as it is."""
    if path is None:
        yield _Terminal() if face.out.is_terminal else sys.stdout
        return
    try:
        with _whole(path.resolve()) if path.is_file() or not path.exists() else _written(path) as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ForgeError(f"{path} cannot be written: {error.strerror or error}.") from error


def _written(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", errors="backslashreplace", newline="")


@contextmanager
def _whole(path: Path) -> Iterator[TextIO]:
    """The file under another name until it is whole."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _written(part) as stream:
            yield stream
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _progress(face: Face, *, shown: bool) -> Iterator[Callable[[int, ExecutionRecord], object]]:
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
