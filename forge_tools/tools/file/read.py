"""Read: lines of a text file, of any size, in any encoding, within a budget; images and pages of PDF files."""

import codecs
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import PurePath
from typing import Any

from forge_tools.artifacts.media import IMAGES, media_type
from forge_tools.artifacts.reader import MOST_SHOWN
from forge_tools.errors import InvalidCallError, SandboxError
from forge_tools.model import ExecutionContext, Image, ToolCategory, ToolResult
from forge_tools.model.artifacts import SCHEME
from forge_tools.model.content import human
from forge_tools.sandbox.artifacts import open_artifact
from forge_tools.sandbox.decoding import decoded
from forge_tools.sandbox.paths.confinement import Handle, meet
from forge_tools.sandbox.paths.files import digest, etag_of
from forge_tools.sandbox.paths.refusals import refusal
from forge_tools.tools.builtin import PATH, Deadline, ReadingTool, option
from forge_tools.tools.file.text import (
    PDF_MAGIC,
    SAMPLE_BYTES,
    Count,
    Encoding,
    Line,
    as_utf8,
    binary_kind,
    lines_from,
    plain_lines,
    sniff,
    tail_start,
    visible,
)
from forge_tools.tools.notebook.read import Wish as Cells
from forge_tools.tools.notebook.read import shown_cells

BINARY_FILE = "BINARY_FILE"

MAX_LINES = 20_000
SURVEYED_BYTES = 64 << 20
"""Up to this size a file is counted and hashed completely."""

PDF = "application/pdf"
PAGES = 20
IMAGE_PAGES = 5

_SIDE = 1568  # pixels of the longer side of an image; providers show models no more
_SHOWN = IMAGES | {PDF}
_RANGE = re.compile(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6}))?\s*")
_PAGES_ROOM = 200
_DEFAULT_LINES = 2000
_GLANCED_BYTES = 64 << 10  # takes half a millisecond, or two if it is all line ends
_UTF8 = Encoding("utf-8")
_LEAST_BYTES = 4096
_KEPT_NUMBERS = 4096
_NOTE_ROOM = 160  # characters of the output reserved for the line that says how to continue
_MARK_ROOM = 60  # and of a truncated line, for its mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    file_path: str = option(
        "Text file to read, relative to the working directory or absolute; or artifact://..., a long output.",
        aliases=("path",), **PATH,
    )  # fmt: skip
    offset: int | None = option(
        "Number of the first line to read; the first line of a file is 1, which is the default.", None, minimum=1
    )
    limit: int = option("How many lines to read at most.", _DEFAULT_LINES, minimum=1, maximum=MAX_LINES)
    tail: int | None = option(
        "Read this many lines from the end instead. Not together with offset.", None, minimum=1, maximum=MAX_LINES
    )
    column: int = option(
        "Skip this many characters of the first line read, to page through a very long line.", 0, minimum=0
    )
    encoding: str | None = option(
        "Name of the text encoding, such as latin-1 or utf-16-le. By default it is detected.", None
    )
    line_numbers: bool = option("Put the number and a tab before each line.", default=True)
    pages: str | None = option("Pages of a PDF, such as 3 or 3-7; by default the first 20.", None, max_length=20)
    page_images: bool = option("Show pages of a PDF as images, 5 at most, instead of their text.", default=False)

    @property
    def count(self) -> int:
        return self.tail or self.limit

    @property
    def may_be_cells(self) -> bool:
        """Whether it may be a notebook, read without line arguments."""
        is_plain = self.offset is None and self.tail is None and not self.column and not self.encoding
        return self.file_path.endswith(".ipynb") and is_plain


class Read(ReadingTool):
    """Read a file of the workspace: lines of text, by default the first 2,000, numbered; an image; pages of a PDF; or cells.

    Files of more than 64 MiB are not counted or hashed: `lines` and `etag` are None, and a tail has no line numbers.
    """

    name = "Read"
    aliases = ("read_file",)
    category = ToolCategory.FILE
    options = Wish

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        wish, workspace, deadline = Wish(**options), self.workspace(context), Deadline(context.timeout)
        if wish.offset is not None and wish.tail is not None:
            raise InvalidCallError("Pass offset or tail, not both")
        kept = await open_artifact(wish.file_path, context, workspace) if wish.file_path.startswith(SCHEME) else None
        is_brief = wish.count <= _DEFAULT_LINES and not wish.may_be_cells
        if not kept and is_brief and (small := workspace.open_cached(wish.file_path)):
            # A small file in the kernel's memory is read right here: a thread would take longer than that.
            with small:
                whole = small.read_at_once(_GLANCED_BYTES)
                seen = Reading(small, wish, deadline, context.max_output_size).glance(whole) if whole else None
            if seen is not None:
                return seen

        def read() -> tuple[Handle, ToolResult]:
            file = kept or workspace.open_file(wish.file_path)
            try:
                meet(file.fd, file.stat.st_dev)
                if wish.may_be_cells and (cells := _cells(file, deadline, context.max_output_size)):
                    return file, cells
                return file, Reading(file, wish, deadline, context.max_output_size).run()
            except BaseException:
                file.close()
                raise

        file, result = await deadline.look(read)
        with file:
            kind = result.error_details["media_type"] if result.error_code == BINARY_FILE else None
            if kind not in _SHOWN:
                return result
            return await _shown(file, kind, wish, deadline.remaining, context.max_output_size)


def _cells(file: Handle, deadline: Deadline, max_chars: int) -> ToolResult | None:
    """Show a notebook as its cells; an invalid one is text."""
    try:
        seen = shown_cells(file, Cells(notebook_path=file.name), deadline, max_chars)
    except SandboxError:
        return None
    seen.metadata.pop("next", None)  # it counts cells, whereas an offset of Read counts lines
    seen.metadata.update(bytes_read=seen.metadata["bytes"], files_accessed=[file.name])
    return seen


@dataclass(slots=True)
class _Page:
    """The shown lines; `next` are the arguments for what follows. `first` is None if lines were not counted."""

    first: int | None
    lines: list[str] = field(default_factory=list)
    next: dict[str, int] | None = None
    is_cut: bool = False


class Reading:
    """Runs on its own thread; it stops between chunks when its time is up or nobody waits any more.

    The exception is `glance`, which is fast enough for an event loop if the file is small.
    """

    def __init__(self, file: Handle, wish: Wish, deadline: Deadline, max_chars: int) -> None:
        self._file = file
        self._wish = wish
        self._deadline = deadline
        self._room = max(1, max_chars - _NOTE_ROOM)
        self._is_partial = False
        self._is_whole = False
        self._bytes_read = 0

    def run(self) -> ToolResult:
        """Return the requested lines, or say why there are none."""
        sample = self._sample()
        if self._is_whole and (seen := self.glance(sample)) is not None:
            return seen
        if not sample:
            return ToolResult.ok("(empty file)", **self._facts(_UTF8, Count(), etag_of(b"")))
        encoding = self._encoding(sample)
        if not encoding.bom and not self._wish.encoding and (kind := binary_kind(sample)):
            return self._refuse_binary(kind, sample)
        count, etag = self._survey(encoding, sample)
        page = self._page(*self._lines(encoding, count))
        if not page.lines and not self._is_partial:
            known = "" if count is None else f" ({count.lines:,} lines)"
            raise InvalidCallError(f"offset {self._wish.offset} is past the end of {self._file.name}{known}")
        return self._result("\n".join(page.lines), page, encoding, count, etag)

    def glance(self, whole: bytes) -> ToolResult | None:
        """Show lines of a file with these bytes if nothing in it needs special treatment, as in nearly every reading.

        Otherwise None. The file itself is not touched, and 10 kB take some 50 microseconds.
        """
        wish = self._wish
        if wish.encoding or wish.column or whole.startswith((codecs.BOM_UTF8, PDF_MAGIC)):
            return None
        self._bytes_read = len(whole)
        count, wanted = Count(), wish.count
        count.add(whole)
        first = max(1, count.lines - wanted + 1) if wish.tail else wish.offset or 1
        lines, has_more = plain_lines(whole, first, wanted)
        text = _numbered(lines, first) if wish.line_numbers else "\n".join(lines)
        if not lines or len(text) >= self._room:
            return None
        page = _Page(first, lines, {"offset": first + wanted} if has_more else None)
        return self._result(text, page, _UTF8, count, etag_of(whole))

    def _encoding(self, sample: bytes) -> Encoding:
        try:
            return sniff(sample, self._wish.encoding)
        except LookupError:
            raise InvalidCallError(f"Unknown text encoding {self._wish.encoding!r}. Try latin-1 or utf-16-le") from None

    def _refuse_binary(self, kind: str, sample: bytes) -> ToolResult:
        size = self._file.stat.st_size
        return ToolResult.fail(
            f"{self._file.name} is binary ({kind}, {human(size)}); text tools cannot read it",
            error_code=BINARY_FILE,
            error_details={"kind": kind, "media_type": media_type(sample), "bytes": size, "head": sample[:64].hex(" ")},
        )

    def _sample(self) -> bytes:
        """Read the beginning of the file, which is nearly always all of it."""
        # No more than exists, or it takes long; one byte more, so that a full read shows that there is a rest.
        size = min(SAMPLE_BYTES, max(self._file.stat.st_size + 1, _LEAST_BYTES))
        sample = self._read(0, size)
        self._is_whole = len(sample) < size
        return sample

    def _survey(self, encoding: Encoding, sample: bytes) -> tuple[Count | None, str | None]:
        """Count and hash the whole file, unless it is large or time runs out."""
        if self._file.stat.st_size > SURVEYED_BYTES:
            return None, None
        read, count, start = digest(encoding.bom), Count(), len(encoding.bom)

        def hashed() -> Iterator[bytes]:
            for chunk in [sample[start:]] if self._is_whole else self._chunks(start):
                read.update(chunk)
                yield chunk

        for chunk in as_utf8(hashed(), encoding):
            count.add(chunk)
        return (None, None) if self._is_partial else (count, etag_of(read))

    def _lines(self, encoding: Encoding, count: Count | None) -> tuple[int | None, Iterator[Line]]:
        """Return the requested lines, and the number of the first one, None if the file was not counted."""
        wish, start = self._wish, len(encoding.bom)
        if not wish.tail or count is not None:
            first = max(1, count.lines - wish.tail + 1) if wish.tail and count else wish.offset or 1
            return first, lines_from(as_utf8(self._chunks(start), encoding), first, wish.column)
        if encoding.codec is not None:
            return None, iter(deque(lines_from(as_utf8(self._chunks(start), encoding), 1), maxlen=wish.count))
        position = tail_start(self._read, start, self._file.stat.st_size, wish.count, SAMPLE_BYTES)
        return None, lines_from(self._chunks(position), 1, wish.column)

    def _page(self, first: int | None, lines: Iterator[Line]) -> _Page:
        """Take the whole lines that are wanted and fit. Only a first line that does not fit is cut."""
        page, used, column = _Page(first), 0, 0
        count, room, take = self._wish.count, self._room, page.lines.append
        for index, whole in enumerate(lines):
            number = None if first is None else first + index
            line = whole if index else self._fitted(number, whole)
            if not index:
                column = line.start + len(line.text) if line.hidden else 0
            record = self._record(number, line)
            if index == count or (index and used + len(record) > room):
                page.next = {"offset": number} if number else {"tail": self._wish.count - index}
                break
            take(record)
            page.is_cut = page.is_cut or bool(line.hidden)
            used += len(record) + 1
        if len(page.lines) == 1 and column:
            page.next = {"column": column} if first is None else {"offset": first, "column": column}
        elif self._is_partial and page.next is None and first is not None:
            page.next = {"offset": first + len(page.lines)}
        return page

    def _fitted(self, number: int | None, line: Line) -> Line:
        if line.start < self._wish.column:
            where = f"line {number}" if number else "the line"
            raise InvalidCallError(f"column {self._wish.column} is past the end of {where} ({line.start:,} characters)")
        if len(self._record(number, line)) <= self._room:
            return line
        shown = line.text[: max(1, self._room - _MARK_ROOM)]
        return Line(shown, line.start, line.hidden + len(line.text) - len(shown))

    def _record(self, number: int | None, line: Line) -> str:
        prefix = f"{number:6}\t" if number and self._wish.line_numbers else ""
        more = f"… [+{line.hidden:,} chars; use column={line.start + len(line.text)}]" if line.hidden else ""
        return f"{prefix}{visible(line.text)}{more}"

    def _result(self, text: str, page: _Page, encoding: Encoding, count: Count | None, etag: str | None) -> ToolResult:
        facts = self._facts(encoding, count, etag)
        facts |= {"shown_lines": len(page.lines), "truncated": page.is_cut or bool(page.next)}
        if page.next:
            facts["next"] = page.next
        return ToolResult.ok("\n".join([text, *self._notes(page, count)]), **facts)

    def _notes(self, page: _Page, count: Count | None) -> list[str]:
        """State at the end what is missing; text without line numbers stays unchanged."""
        notes = ["[stopped early: the call's time ran out]"] if self._is_partial else []
        if page.next and page.first is not None and self._wish.line_numbers:
            last = page.first + len(page.lines) - 1
            total = "" if count is None else f" of {count.lines:,}"
            how = ", ".join(f"{name}={value}" for name, value in page.next.items())
            notes.append(f"[lines {page.first:,}-{last:,}{total}; continue with {how}]")
        return notes

    def _chunks(self, position: int) -> Iterator[bytes]:
        while chunk := self._read(position, SAMPLE_BYTES):
            yield chunk
            position += len(chunk)
            if self._deadline.is_over:
                self._is_partial = True
                return

    def _read(self, position: int, size: int) -> bytes:
        try:
            data = os.pread(self._file.fd, size, position)
        except OSError as error:
            raise refusal(error, self._file.name, "read") from error
        self._bytes_read += len(data)
        return data

    def _facts(self, encoding: Encoding, count: Count | None, etag: str | None) -> dict[str, Any]:
        stat, lines = self._file.stat, count and count.lines
        facts = {
            "lines": lines,
            "total_lines": lines,
            "total_chars": count and count.chars,
            "shown_lines": 0,
            "truncated": False,
            "bytes": stat.st_size,
            "encoding": encoding.name,
            "eol": count and count.eol,
            "bom": bool(encoding.bom),
            "etag": etag,
            "mtime": datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(),
            "bytes_read": min(self._bytes_read, stat.st_size),  # some are read twice
            "files_accessed": [self._file.name],
        }
        return facts | {"partial": True} if self._is_partial else facts


def _numbered(lines: list[str], first: int) -> str:
    if first + len(lines) > _KEPT_NUMBERS:
        return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, first))
    pieces = [""] * (2 * len(lines))
    pieces[::2], pieces[1::2] = _numbers()[first : first + len(lines)], lines
    return "".join(pieces)[1:]


@cache
def _numbers() -> list[str]:
    """Cache the line numbers: formatting one takes longer than everything else done to its line."""
    return [f"\n{number:6}\t" for number in range(_KEPT_NUMBERS)]


async def _shown(file: Handle, kind: str, wish: Wish, seconds: float, max_chars: int) -> ToolResult:
    """Show an image, or pages of a PDF, decoded in a separate process."""
    if kind != PDF:
        return await _image(file, kind, seconds)
    first, last = _page_range(wish.pages, IMAGE_PAGES if wish.page_images else PAGES)
    limits = {"first": first, "last": last}
    if not wish.page_images:
        limits["most_chars"] = max(1, max_chars - _PAGES_ROOM)
    facts, data = await decoded(file.name, file.fd, "pages" if wish.page_images else "text", seconds, **limits)
    note = _pages_note(file, facts, first, last)
    shown = [note, *_images(data, facts["sizes"], first)] if wish.page_images else f"{data.decode()}\n\n{note}"
    return ToolResult.ok(shown, **_media_facts(file, PDF, facts))


def _images(data: bytes, sizes: list[int], first: int) -> Iterator[Image]:
    for number, size in enumerate(sizes, first):
        yield Image(data[:size], f"page-{number}.png")
        data = data[size:]


async def _image(file: Handle, kind: str, seconds: float) -> ToolResult:
    facts, data = await decoded(file.name, file.fd, "image", seconds, side=_SIDE, most_bytes=MOST_SHOWN)
    size = file.stat.st_size
    said = f"{file.name}: {kind}, {facts['width']:,} x {facts['height']:,} pixels, {human(size)}"
    if facts["frames"] > 1:
        said += f", {facts['frames']:,} frames, only the first is decoded"
    name = PurePath(file.name)
    if "shown" in facts:
        width, height = facts["shown"]
        said += f"; shown at {width:,} x {height:,}"
        name = name.with_suffix(".jpg" if media_type(data) == "image/jpeg" else ".png")
    else:
        data = os.pread(file.fd, size, 0)
    return ToolResult.ok([said, Image(data, name.name)], **_media_facts(file, kind, facts))


def _pages_note(file: Handle, facts: dict[str, Any], first: int, asked: int) -> str:
    last, total = facts["last"], facts["pages"]
    if first > total:
        raise InvalidCallError(f"page {first:,} is past the end of {file.name}, which has {total:,} pages")
    more = f"; continue with pages={last + 1}-{min(total, last + 1 + asked - first)}" if last < total else ""
    return f"[pages {first:,}-{last:,} of {total:,}{more}]"


def _media_facts(file: Handle, kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {name: facts[name] for name in ("width", "height", "pages") if name in facts}
    return {"bytes": file.stat.st_size, "media_type": kind, **told}


def _page_range(pages: str | None, most: int) -> tuple[int, int]:
    if pages is None:
        return 1, most
    found = _RANGE.fullmatch(pages)
    first = int(found[1]) if found else 0
    last = int(found[2] or first) if found else 0
    if not 1 <= first <= last:
        what = f"pages {pages!r} is not a page range. Give one page, such as 3, or several, such as 3-7"
        raise InvalidCallError(what)
    return first, min(last, first + most - 1)
