"""`forge-tools export`: history as a file, oldest first, however long it is."""

import csv
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Protocol, TextIO

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from forge_tools.cli import filters
from forge_tools.cli.database import with_store
from forge_tools.cli.face import Face, OutputOption, face_of, printable, standard_output
from forge_tools.cli.lazy import command_app
from forge_tools.cli.listed import KindOption, Listed, OfOption, Record, Rows, listed, narrowed
from forge_tools.errors import ForgeError
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
    of: OfOption = Rows.EXECUTIONS,
    kind: KindOption = None,
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
    """Write executions with all that is kept of them, or attempts or events, oldest first; what comes meanwhile is left out.

    A file appears whole or not at all.
    """
    chosen = narrowed(filters.given(context), of, kind)
    face = face_of(context)

    async def write(store: Store) -> int:
        count, chosen_rows = 0, listed(store.history, of)
        with _opened(to, face) as stream, _progress(face, of, chosen.get("until"), shown=_is_seen(face, to)) as told:
            rows = _Rows(stream, format, chosen_rows)
            async for page in chosen_rows.pages(**chosen):
                for record in page:
                    rows.add(record)
                count += len(page)
                told(count, chosen_rows.moment(page[0]) if page else page.until, page.until)
        return count

    with _quiet_when_nobody_reads(), _interrupted_by(signal.SIGTERM), _interrupted_by(signal.SIGHUP):
        count = with_store(write)
        if face.is_json and to is not None:
            face.document({of.value: count, "file": str(to)})
        elif to is not None:
            face.note(f"{count:,} {of.value} in {to}")


_Told = Callable[[int, datetime, datetime], None]
"""Takes how many rows were written, and from when to when was looked for the last of them."""


class _Stream(Protocol):
    def write(self, text: str, /) -> object: ...


class _Rows:
    """Writes records in one of the formats; CSV begins with the names of its columns, and has nested values as JSON."""

    def __init__(self, stream: _Stream, format: Format, listed: Listed) -> None:
        self._stream = stream
        self._listed = listed
        self._csv = csv.writer(stream) if format is Format.CSV else None
        if self._csv is not None:
            self._csv.writerow(listed.names)

    def add(self, record: Record) -> None:
        row = self._listed.document(record)
        if self._csv is None:
            self._stream.write(json.dumps(row, separators=(",", ":"), ensure_ascii=False, default=str) + "\n")
        else:
            self._csv.writerow([_cell(row[name]) for name in self._listed.names])


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
        yield _Terminal() if face.out.is_terminal else standard_output()
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


def _is_seen(face: Face, to: Path | None) -> bool:
    """Where rows go to the terminal itself, nothing is shown between them."""
    return face.err.is_terminal and (to is not None or not face.out.is_terminal)


@contextmanager
def _progress(face: Face, of: Rows, until: datetime | None, *, shown: bool) -> Iterator[_Told]:
    """A bar on the error stream: how much of the time from the first row until now is written; counting would read it twice."""
    if not shown:
        yield lambda count, first, last: None
        return
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    end = min(until or datetime.now(UTC), datetime.now(UTC))
    began: list[datetime] = []
    with Progress(*columns, console=face.err, transient=True) as progress:
        task = progress.add_task("", total=None, said="")

        def told(count: int, first: datetime, last: datetime) -> None:
            if not began:
                began.append(first)
            whole = max((end - began[0]).total_seconds(), 1e-3)
            said = f"{count:,} {of.value}, to {last:%Y-%m-%d %H:%MZ}"
            progress.update(task, total=whole, completed=(last - began[0]).total_seconds(), said=said)

        yield told


@contextmanager
def _interrupted_by(number: signal.Signals) -> Iterator[None]:
    """What would end this process at once does what Ctrl-C does, so that no part of a file stays; nohup is still heeded."""
    before = signal.getsignal(number)
    if before == signal.SIG_DFL:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Where Ctrl-C is ignored, as in what a script starts in the background, a signal of it would be as well."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.default_int_handler(number, frame)
    signal.raise_signal(signal.SIGINT)


@contextmanager
def _quiet_when_nobody_reads() -> Iterator[None]:
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        with suppress(OSError):
            sys.stdout.close()
        raise typer.Exit(1) from None
