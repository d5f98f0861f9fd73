"""`forge-tools export` and `artifact`: history as a file, oldest first, of any length; a stored long output or a page."""

import base64
import codecs
import csv
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from typer import Argument, Option

from forge_tools.cli.face import App, Face, standard_output
from forge_tools.cli.history import LISTED, OfOption, Record, Rows, document, refuse_unfitting
from forge_tools.cli.live import moving_line
from forge_tools.cli.selection import ALL, Chosen, filtered
from forge_tools.cli.services import with_store
from forge_tools.cli.text import as_json, iso, printable
from forge_tools.errors import ForgeError
from forge_tools.model.artifacts import PAGE_BYTES, PAGE_LINES, ArtifactPage, PageWish
from forge_tools.signals import handled, not_ignored
from forge_tools.storage import Store

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

app = App()


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"


@app.command()
@filtered(*ALL)
def export(
    face: Face,
    *,
    of: OfOption = Rows.EXECUTIONS,
    format: Annotated[Format, Option(help="One JSON object per line, or comma-separated values.")] = Format.JSONL,
    to: Annotated[Path | None, Option(metavar="FILE", help="The file; by default standard output.")] = None,
    chosen: Chosen,
) -> None:
    """Write executions with everything kept about them, or attempts or events, oldest first; those that arrive meanwhile are left out.

    A file is written completely or not at all.
    """
    refuse_unfitting(chosen, of)
    rows = LISTED[of]

    async def write(store: Store) -> int:
        count, began, end = 0, None, min(chosen.get("until") or datetime.now(UTC), datetime.now(UTC))
        # How much of the time until now is written: counting rows would read everything twice.
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[said]}"))
        is_shown = to is not None or not face.out.is_terminal
        with _opened(to, face) as stream, moving_line(face, *columns, is_shown=is_shown, said="") as told:
            add = _writer(stream, format, rows.names)
            async for page in getattr(store.history, rows.pages)(**chosen):
                for record in page:
                    add(record)
                count += len(page)
                began = began or (rows.moment(page[0]) if page else page.until)
                whole, done = ((moment - began).total_seconds() for moment in (end, page.until))
                said = f"{count:,} {of.value}, to {page.until:%Y-%m-%d %H:%MZ}"
                told(total=max(whole, 1e-3), completed=done, said=said)  # of a total of 0, Rich shows 0%
        return count

    # Fatal signals act like Ctrl-C, so that no partial file stays; nohup is respected.
    with handled(not_ignored(signal.SIGTERM, signal.SIGHUP), signal.default_int_handler):
        count = with_store(write)
        if to is None:
            standard_output().flush()
    if face.is_json and to is not None:
        face.document({of.value: count, "file": str(to)})
    elif to is not None:
        face.note(f"{count:,} {of.value} in {to}")


def _writer(stream: "SupportsWrite[str]", format: Format, names: Sequence[str]) -> Callable[[Record], object]:
    """Return a function that writes one record. CSV starts with a header, and holds nested values as JSON."""
    if format is Format.JSONL:
        return lambda record: stream.write(as_json(document(record), separators=(",", ":"), ensure_ascii=False) + "\n")
    rows = csv.writer(stream)
    rows.writerow(names)
    return lambda record: rows.writerow([_cell(value) for value in document(record).values()])


def _cell(value: object) -> object:
    if isinstance(value, datetime):
        return iso(value)
    return as_json(value, ensure_ascii=False) if isinstance(value, dict | list) else value


class _Terminal:
    def write(self, row: str, /) -> object:
        return sys.stdout.write(printable(row.rstrip("\r\n")) + "\n")


@contextmanager
def _opened(path: Path | None, face: Face) -> Iterator["SupportsWrite[str]"]:
    """Open the destination. An existing device or pipe is written to directly."""
    if path is None:
        yield _Terminal() if face.out.is_terminal else standard_output()
        return
    try:
        with _whole(path.resolve()) if path.is_file() or not path.exists() else _written(path) as stream:
            yield stream
    except BrokenPipeError:  # the reader has left, which is no fault of the file
        raise
    except OSError as error:
        raise ForgeError(f"{path} cannot be written: {error.strerror or error}.") from error


def _written(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", errors="backslashreplace", newline="")


@contextmanager
def _whole(path: Path) -> Iterator[TextIO]:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _written(part) as stream:
            yield stream
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@app.command()
def artifact(
    face: Face,
    handle: Annotated[str, Argument(metavar="HANDLE", help="The handle in a shortened output: artifact://...")],
    *,
    offset: Annotated[int | None, Option(min=1, help="Begin with this line; the first is 1.")] = None,
    limit: Annotated[int | None, Option(min=1, help="Number of lines at most.", show_default=f"{PAGE_LINES:,}")] = None,
    byte: Annotated[int | None, Option(min=0, help="Begin with this byte instead; the first is 0.")] = None,
    max_bytes: Annotated[
        int | None, Option(min=1, help="Number of bytes at most.", show_default=f"{PAGE_BYTES:,}")
    ] = None,
) -> None:
    """Write an artifact to standard output, byte for byte; to a terminal, without what could harm it.

    Writes all of it, or a page if an option is given; then the error stream says where to continue. JSON is always a page.
    """
    is_paged = face.is_json or any(given is not None for given in (offset, limit, byte, max_bytes))
    wish = PageWish(offset=offset, byte=byte, limit=limit, max_bytes=max_bytes)

    async def page(store: Store) -> ArtifactPage:
        return await store.artifacts.page(await store.artifacts.named(handle), wish)

    if is_paged:
        _show(face, with_store(page))
    else:
        with_store(lambda store: _copy(store, handle, is_terminal=face.out.is_terminal))


async def _copy(store: Store, handle: str, *, is_terminal: bool) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for chunk in store.artifacts.contents(handle):
        if is_terminal:
            sys.stdout.write(printable(decoder.decode(chunk)))
        else:
            sys.stdout.buffer.write(chunk)
    sys.stdout.write(decoder.decode(b"", final=True))  # a partial character at the end
    sys.stdout.flush()


def _show(face: Face, page: ArtifactPage) -> None:
    if face.is_json:
        face.document(_document(page))
        return
    if face.out.is_terminal:
        sys.stdout.write(printable(page.text))
    else:
        sys.stdout.buffer.write(page.data)
    sys.stdout.flush()
    if page.next:
        ((name, value),) = page.next.items()
        face.note(f"[bytes {page.start:,}-{page.end:,} of {page.size:,}; continue with --{name} {value}]")


def _document(page: ArtifactPage) -> dict[str, Any]:
    names = ("handle", "size", "start", "end", "first_line", "lines", "next")
    facts = {name: getattr(page, name) for name in names}
    try:
        return facts | {"text": page.data.decode()}
    except UnicodeDecodeError:
        return facts | {"base64": base64.b64encode(page.data).decode()}
