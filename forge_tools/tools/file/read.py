"""Read: lines of a text file, of any size, in any encoding, within a budget."""

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

from forge_tools.artifacts.media import media_type
from forge_tools.errors import InvalidCallError, SandboxError
from forge_tools.model import ExecutionContext, ToolCategory, ToolResult
from forge_tools.sandbox.artifacts import is_handle, open_artifact
from forge_tools.sandbox.paths.confinement import Handle, meet
from forge_tools.sandbox.paths.files import Digest
from forge_tools.sandbox.paths.refusals import refusal
from forge_tools.tools.builtin import PATH, ReadingTool, option, parameters_of
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.file.lines import Count, Line, last_lines, lines_from, plain_lines, tail_start
from forge_tools.tools.file.media import SHOWN, Showing, shown
from forge_tools.tools.file.text import PDF_MAGIC, SAMPLE_BYTES, Encoding, as_utf8, binary_kind, sniff, visible
from forge_tools.tools.notebook.read import Wish as Cells
from forge_tools.tools.notebook.read import shown_cells

BINARY_FILE = "BINARY_FILE"

MAX_LINES = 20_000
SURVEYED_BYTES = 64 << 20
"""Up to this size a file is counted and hashed as a whole."""

_DEFAULT_LINES = 2000
_GLANCED_BYTES = 64 << 10  # take half a millisecond, and two if they are nothing but line ends
_UTF8 = Encoding("utf-8")
_LEAST_BYTES = 4096
_KEPT_NUMBERS = 4096
_NOTE_ROOM = 160  # characters of the output kept free for the line that says how to go on
_MARK_ROOM = 60  # and of a line that is cut, for the mark that says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to read: lines from `offset` on, or the last ones."""

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
    line_numbers: bool = option("Put its number and a tab before each line.", default=True)
    pages: str | None = option("Pages of a PDF, such as 3 or 3-7; by default the first 20.", None, max_length=20)
    page_images: bool = option("Show pages of a PDF as images, 5 at most, instead of their text.", default=False)

    @property
    def count(self) -> int:
        return self.tail or self.limit

    @property
    def may_be_cells(self) -> bool:
        """Whether it may be a notebook, of which no lines are asked for."""
        is_plain = self.offset is None and self.tail is None and not self.column and not self.encoding
        return self.file_path.endswith(".ipynb") and is_plain


class Read(ReadingTool):
    """Read a file of the workspace: lines of text, by default the first 2,000, numbered; an image; pages of a PDF; or cells.

    Files of more than 64 MiB are not counted or hashed: `lines` and `etag` are None, and a tail has no line numbers.
    """

    name = "Read"
    aliases = ("read_file",)
    category = ToolCategory.FILE
    parameters = parameters_of(Wish)

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        wish, workspace, deadline = Wish(**options), self.workspace(context), Deadline(context.timeout)
        if wish.offset is not None and wish.tail is not None:
            raise InvalidCallError("Pass offset or tail, not both")
        kept = await open_artifact(wish.file_path, context, workspace) if is_handle(wish.file_path) else None
        is_brief = wish.count <= _DEFAULT_LINES and not wish.may_be_cells
        if not kept and is_brief and (file := workspace.open_cached(wish.file_path)):
            # A small file that the kernel has in memory is read right here: a thread would take longer than that.
            with file:
                whole = file.read_at_once(_GLANCED_BYTES)
                seen = Reading(file, wish, deadline, context.max_output_size).glance(whole) if whole else None
            if seen is not None:
                return seen

        def read() -> ToolResult:
            with kept or workspace.open_file(wish.file_path) as file:
                meet(file.fd, file.stat.st_dev)
                if wish.may_be_cells and (cells := _cells(file, deadline, context.max_output_size)):
                    return cells
                return Reading(file, wish, deadline, context.max_output_size).run()

        result = await deadline.look(read)
        is_shown = result.error_code == BINARY_FILE and result.error_details["media_type"] in SHOWN
        return await self._look(result.error_details["media_type"], wish, context, deadline) if is_shown else result

    async def _look(self, kind: str, wish: Wish, context: ExecutionContext, deadline: Deadline) -> ToolResult:
        """Show a file that is no text."""
        workspace = self.workspace(context)
        if is_handle(wish.file_path):
            file = await open_artifact(wish.file_path, context, workspace)
        else:
            file = await deadline.look(lambda: workspace.open_file(wish.file_path))
        with file:
            how = Showing(wish.pages, wish.page_images, context.max_output_size, deadline.remaining)
            return await shown(file, kind, how)


def _cells(file: Handle, deadline: Deadline, max_chars: int) -> ToolResult | None:
    """Show a notebook as its cells; one that is none is text."""
    try:
        seen = shown_cells(file, Cells(notebook_path=file.name), deadline, max_chars)
    except SandboxError:
        return None
    seen.metadata.pop("next", None)  # it counts cells, and an offset of Read lines
    seen.metadata.update(bytes_read=seen.metadata["bytes"], files_accessed=[file.name])
    return seen


@dataclass(slots=True)
class _Page:
    """What is shown; `next` are the arguments that show what follows. `first` is None where nobody counted lines."""

    first: int | None
    lines: list[str] = field(default_factory=list)
    next: dict[str, int] | None = None
    is_cut: bool = False


class Reading:
    """Runs on a thread of its own; it stops between chunks when its time is up or nobody waits any more.

    All but `glance`, which is quick enough for an event loop where the file is small.
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
        """Return the lines asked for, or say why there are none."""
        sample = self._sample()
        if self._is_whole and (seen := self.glance(sample)) is not None:
            return seen
        if not sample:
            return ToolResult.ok("(empty file)", **self._facts(_UTF8, Count(), Digest()))
        encoding = self._encoding(sample)
        if not encoding.bom and not self._wish.encoding and (kind := binary_kind(sample)):
            return self._refuse_binary(kind, sample)
        count, digest = self._survey(encoding, sample)
        page = self._page(*self._lines(encoding, count))
        if not page.lines and not self._is_partial:
            known = "" if count is None else f" ({count.lines:,} lines)"
            raise InvalidCallError(f"offset {self._wish.offset} is past the end of {self._file.name}{known}")
        return self._result("\n".join(page.lines), page, encoding, count, digest)

    def glance(self, whole: bytes) -> ToolResult | None:
        """Show lines of a file of these bytes where nothing in it needs a look of its own: nearly every reading.

        None where something does. The file itself is not touched, and 10 kB take some 50 microseconds.
        """
        wish = self._wish
        if wish.encoding or wish.column or whole.startswith((codecs.BOM_UTF8, PDF_MAGIC)):
            return None
        self._bytes_read = len(whole)
        count = Count()
        count.add(whole)
        first = max(1, count.lines - wish.count + 1) if wish.tail else wish.offset or 1
        lines, has_more = plain_lines(whole, first, wish.count)
        text = _numbered(lines, first) if wish.line_numbers else "\n".join(lines)
        if not lines or len(text) >= self._room:
            return None
        page = _Page(first, lines, {"offset": first + wish.count} if has_more else None)
        return self._result(text, page, _UTF8, count, Digest(whole))

    def _encoding(self, sample: bytes) -> Encoding:
        try:
            return sniff(sample, self._wish.encoding)
        except LookupError:
            raise InvalidCallError(f"Unknown text encoding {self._wish.encoding!r}. Try latin-1 or utf-16-le") from None

    def _refuse_binary(self, kind: str, sample: bytes) -> ToolResult:
        size = self._file.stat.st_size
        return ToolResult.fail(
            f"{self._file.name} is binary ({kind}, {_human(size)}); text tools cannot read it",
            error_code=BINARY_FILE,
            error_details={"kind": kind, "media_type": media_type(sample), "bytes": size, "head": sample[:64].hex(" ")},
        )

    def _sample(self) -> bytes:
        """Read how the file begins; nearly always that is all of it."""
        # No more than is there, or it takes long.
        size = min(SAMPLE_BYTES, max(self._file.stat.st_size + 1, _LEAST_BYTES))
        sample = self._read(0, size)
        self._is_whole = len(sample) < size
        return sample

    def _survey(self, encoding: Encoding, sample: bytes) -> tuple[Count | None, Digest | None]:
        """Count and hash the whole file, unless it is large or time runs out."""
        if self._file.stat.st_size > SURVEYED_BYTES:
            return None, None
        digest, count, start = Digest(encoding.bom), Count(), len(encoding.bom)

        def hashed() -> Iterator[bytes]:
            for chunk in [sample[start:]] if self._is_whole else self._chunks(start):
                digest.update(chunk)
                yield chunk

        for chunk in as_utf8(hashed(), encoding):
            count.add(chunk)
        return (None, None) if self._is_partial else (count, digest)

    def _lines(self, encoding: Encoding, count: Count | None) -> tuple[int | None, Iterator[Line]]:
        """Return the number of the first line, None if nobody counted, and the lines from there."""
        wish, start = self._wish, len(encoding.bom)
        if not wish.tail or count is not None:
            first = max(1, count.lines - wish.tail + 1) if wish.tail and count else wish.offset or 1
            return first, lines_from(as_utf8(self._chunks(start), encoding), first, wish.column)
        if encoding.codec is not None:
            return None, iter(last_lines(as_utf8(self._chunks(start), encoding), wish.count))
        position = tail_start(self._read, start, self._file.stat.st_size, wish.count, SAMPLE_BYTES)
        return None, lines_from(self._chunks(position), 1, wish.column)

    def _page(self, first: int | None, lines: Iterator[Line]) -> _Page:
        """Take as many whole lines as are wanted and fit; only a first line that does not fit is cut."""
        page, used, column = _Page(first), 0, 0
        count, room, take = self._wish.count, self._room, page.lines.append
        for index, line in enumerate(lines):
            number = None if first is None else first + index
            if not index:
                self._check_column(line, number)
                line = self._fitted(number, line)  # noqa: PLW2901  the cut line is the line from here on
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

    def _check_column(self, line: Line, number: int | None) -> None:
        if line.start < self._wish.column:
            where = f"line {number}" if number else "the line"
            raise InvalidCallError(f"column {self._wish.column} is past the end of {where} ({line.start:,} characters)")

    def _fitted(self, number: int | None, line: Line) -> Line:
        if len(self._record(number, line)) <= self._room:
            return line
        shown = line.text[: max(1, self._room - _MARK_ROOM)]
        return Line(shown, line.start, line.hidden + len(line.text) - len(shown))

    def _record(self, number: int | None, line: Line) -> str:
        text = line.text if line.text.isprintable() else visible(line.text)
        if not line.hidden:  # nearly every line
            return f"{number:6}\t{text}" if number and self._wish.line_numbers else text
        prefix = f"{number:6}\t" if number and self._wish.line_numbers else ""
        more = f"… [+{line.hidden:,} chars; use column={line.start + len(line.text)}]"
        return f"{prefix}{text}{more}"

    def _result(
        self, text: str, page: _Page, encoding: Encoding, count: Count | None, digest: Digest | None
    ) -> ToolResult:
        facts = self._facts(encoding, count, digest)
        facts |= {"shown_lines": len(page.lines), "truncated": page.is_cut or bool(page.next)}
        if page.next:
            facts["next"] = page.next
        return ToolResult.ok("\n".join([text, *self._notes(page, count)]), **facts)

    def _notes(self, page: _Page, count: Count | None) -> list[str]:
        """Say at the end what is missing; text without line numbers is left alone."""
        notes = ["[stopped early: the time for this call was over]"] if self._is_partial else []
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

    def _facts(self, encoding: Encoding, count: Count | None, digest: Digest | None) -> dict[str, Any]:
        stat = self._file.stat
        facts = {
            "lines": count and count.lines,
            "total_lines": count and count.lines,
            "total_chars": count and count.chars,
            "shown_lines": 0,
            "truncated": False,
            "bytes": stat.st_size,
            "encoding": encoding.name,
            "eol": count and count.eol,
            "bom": bool(encoding.bom),
            "etag": digest and digest.etag,
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
    """What the first lines of files begin with: to write a number takes longer than all else that is done to its line."""
    return [f"\n{number:6}\t" for number in range(_KEPT_NUMBERS)]


def _human(size: float) -> str:
    units = iter(("bytes", "KB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= 1024:
        size, unit = size / 1024, next(units, "PB")
    return f"{size:.0f} {unit}"
