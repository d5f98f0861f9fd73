"""Write: a whole file, created or replaced at once; and how any one file is changed.

A change is planned, then journaled and done, or only described in a dry run.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, ClassVar, Literal, Protocol

from forge_tools.errors import SandboxError
from forge_tools.model import Capabilities, ExecutionContext, ToolCategory, ToolResult
from forge_tools.sandbox.paths.files import (
    Replacement,
    Snapshot,
    etag_at,
    etag_of,
    replace_file,
    set_executable,
    take_snapshot,
    temporary_name,
)
from forge_tools.sandbox.paths.journal import Journal
from forge_tools.sandbox.paths.places import Check, Place
from forge_tools.sandbox.paths.refusals import NOT_FOUND, STALE
from forge_tools.tools.builtin import PATH, BuiltinTool, Deadline, counted, option
from forge_tools.tools.file.text import decoded, encode, encoding_for, eol_of, visible, with_eol

MAX_CHARS = 10_000_000
MAX_LINES = 200
_CONTEXT = 3
_MAX_COMPARED = 2000  # lines of each side between the first and the last difference: the comparison may be quadratic
_MAX_WINDOW = 1 << 20
_MAX_SHOWN_CHARS = 500
_STEP = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a call does to a file: `data` is all its new bytes, None if they stay; `preview` is for a dry run."""

    data: bytes | None
    result: ToolResult
    preview: str
    is_executable: bool | None = None


class Planner(Protocol):
    """The options of a tool that changes a file."""

    @property
    def file_path(self) -> str: ...

    def plan(self, place: Place, seen: Snapshot | None, check: Check) -> Change:
        """Decide the change for a file in this state; touch nothing."""


class ChangingTool(BuiltinTool):
    """A tool that changes one file as its options plan."""

    capabilities = Capabilities(writes_files=True, idempotent=True, retryable=True)
    options: ClassVar[Callable[..., Planner]]

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        planner, deadline, workspace = self.options(**options), Deadline(context.timeout), self.workspace(context)
        check = deadline.check

        def work() -> ToolResult:
            with workspace.place(planner.file_path) as place:
                if place.missing:
                    planner.plan(place, None, check)  # if this refuses, no folder is created
                    place.require_writable(None)
                    place.make_folders()
                try:
                    with place.locked(check):
                        journal = Journal(context, place.root, self.name, options)
                        done = journal.recall(place, lambda: etag_at(place, check))
                        return done or _apply(place, planner, journal, check)
                except BaseException:
                    place.unmake_folders()
                    raise

        return await deadline.run(work)

    async def _dry_run(self, context: ExecutionContext, **options: Any) -> ToolResult:
        planner, deadline, workspace = self.options(**options), Deadline(context.timeout), self.workspace(context)

        def work() -> ToolResult:
            with workspace.place(planner.file_path) as place:
                seen = take_snapshot(place, deadline.check)
                change = planner.plan(place, seen, deadline.check)
                if change.data is not None:
                    place.require_writable(seen.status if seen else None)
                facts = change.result.metadata | _accessed(place, seen, change.data)
                return ToolResult.ok(f"[Dry Run] {change.preview}", **facts)

        return await deadline.run(work)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    file_path: str = option("File to write, relative to the working directory or absolute.", aliases=("path",), **PATH)
    content: str = option("The whole content of the file.", max_length=MAX_CHARS)
    if_match: str | None = option(
        "Write only if the file still has this etag, which Read and the last write returned.", None, max_length=64
    )
    if_none_match: Literal["*"] | None = option('Pass "*" to write only if there is no such file yet.', None)
    create_dirs: bool = option("Create missing parent folders.", default=True)
    line_endings: Literal["keep", "lf", "crlf", "as_given"] = option(
        "keep: those of the replaced file; lf; crlf; as_given: those of the content.", "keep"
    )
    encoding: str | None = option(
        "Text encoding, such as latin-1 or utf-8-sig. By default that of the old file, or UTF-8.", None, max_length=64
    )
    executable: bool | None = option("Whether the file is executable. By default as before.", None)

    def plan(self, place: Place, seen: Snapshot | None, check: Check) -> Change:
        self._check(place, seen)
        encoding = encoding_for(seen.head if seen else None, self.encoding)
        old = decoded(seen.data, encoding) if seen and seen.data is not None else None
        text = self._with_line_ends(old)
        mark = b"" if text.startswith("\ufeff") else encoding.bom  # the content may bring its own
        data = mark + encode(text, encoding, place.shown, "content")
        facts = facts_of(seen, data)
        facts |= {"lines": line_count(text), "encoding": encoding.name, "eol": eol_of(text)}
        if text != self.content:
            facts["line_endings_changed"] = True
        size = f"{counted(line_count(text), 'line')}, {len(data):,} bytes"
        if not facts["changed"]:
            return self._unchanged(f"{place.shown} already has exactly this content ({size})", place, seen, facts)
        told = f"{place.shown} ({size}{_was(old, seen)})"
        diff = None if old is None else unified(old, text)
        more = f"\n{diff}" if diff else ""
        new = ", and its parent folders" if place.missing else ""
        return Change(
            data=data,
            is_executable=self.executable,
            result=ToolResult.ok(f"{'Wrote' if seen else 'Created'} {told}{more}", **facts),
            preview=f"Would {'overwrite' if seen else 'create'} {told}{new}{more}",
        )

    def _check(self, place: Place, seen: Snapshot | None) -> None:
        if self.if_none_match is not None and seen is not None:
            what = f'{place.shown} already exists, and if_none_match="*" only creates new files. '
            raise SandboxError(f"{what}Read it, and pass its etag as if_match to replace it", STALE)
        require_match(place, seen, self.if_match)
        if place.missing and not self.create_dirs:
            what = f"The folder of {place.shown} does not exist. Pass create_dirs=true to create it"
            raise SandboxError(what, NOT_FOUND)

    def _with_line_ends(self, old: str | None) -> str:
        if self.line_endings in ("lf", "crlf"):
            return with_eol(self.content, self.line_endings)
        is_kept = self.line_endings == "keep" and old is not None and "\r" not in self.content
        return with_eol(self.content, "crlf") if is_kept and old and eol_of(old) == "crlf" else self.content

    def _unchanged(self, text: str, place: Place, seen: Snapshot | None, facts: dict[str, Any]) -> Change:
        is_executable = None if seen is None else bool(seen.status.st_mode & 0o100)
        if self.executable in (None, is_executable):
            result = ToolResult.ok(f"Unchanged: {text}", **facts)
            return Change(data=None, result=result, preview=f"Would change nothing: {text}")
        text = f"{place.shown} {'executable' if self.executable else 'not executable'}; its content is unchanged"
        result = ToolResult.ok(f"Made {text}", **facts)
        # The other names of a hard link may lie outside: they keep their mode.
        data = seen.data if seen is not None and seen.status.st_nlink > 1 else None
        return Change(data=data, is_executable=self.executable, result=result, preview=f"Would make {text}")


class Write(ChangingTool):
    """Create or completely replace a text file in the workspace; a replaced file keeps its encoding, line ends and mode.

    To lose nothing that others wrote, read the file before, and pass its `etag` as `if_match`.
    """

    name = "Write"
    aliases = ("write_file",)
    category = ToolCategory.FILE
    options = _Writing


def _was(old: str | None, seen: Snapshot | None) -> str:
    if old is not None:
        return f"; was {counted(line_count(old), 'line')}"
    return f"; was {seen.status.st_size:,} bytes" if seen else ""


def require_match(place: Place, seen: Snapshot | None, if_match: str | None) -> None:
    """Refuse if the file is not the one that the caller has seen."""
    if if_match is None or (seen and seen.etag == if_match):
        return
    if seen is None:
        raise SandboxError(f"{place.shown} does not exist (any more), but if_match expects {if_match}", STALE)
    what = f"{place.shown} changed since it was read (etag {if_match} expected, {seen.etag} found). Read it again"
    raise SandboxError(what, STALE)


def facts_of(seen: Snapshot | None, data: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "changed": seen is None or seen.data != data,
        "created": seen is None,
        "bytes": len(data),
        "etag_before": seen.etag if seen else None,
        "etag": etag_of(data),
    }
    if seen is not None and seen.status.st_nlink > 1 and facts["changed"]:
        facts["hardlink_broken"] = True  # its other names keep the old bytes
    return facts


def _apply(place: Place, planner: Planner, journal: Journal, check: Check) -> ToolResult:
    seen = take_snapshot(place, check)
    change, status = planner.plan(place, seen, check), seen.status if seen else None
    change.result.metadata.update(_accessed(place, seen, change.data))
    replacement = Replacement(data=change.data or b"", seen=status, is_executable=change.is_executable)
    if change.data is None:
        if change.is_executable is not None:
            set_executable(place, replacement)
        return change.result
    place.require_writable(status)
    temporary = temporary_name(place.name)
    journal.plan(seen.etag if seen else None, change.result.metadata["etag"], temporary, change.result)
    replace_file(place, replacement, temporary, check)
    journal.done()
    return change.result


def _accessed(place: Place, seen: Snapshot | None, data: bytes | None) -> dict[str, Any]:
    """Return what was read and written of which file (spec S1-08)."""
    return {
        "bytes_read": seen.status.st_size if seen else 0,
        "bytes_written": len(data or b""),
        "files_accessed": [place.shown],
    }


def unified(old: str, new: str, readable: Callable[[str], str] = str) -> str | None:
    """Render the diff, each line as `readable` shows it; None if it is longer than `MAX_LINES`, or too much to compare."""
    start, end = _window(old, new)
    if max(len(old), len(new)) - end - start > _MAX_WINDOW:
        return None
    parts = old[start : len(old) - end], new[start : len(new) - end]
    if max(part.count("\n") for part in parts) > _MAX_COMPARED:
        return None
    if all(part.count("\r\n") == part.count("\n") for part in parts):
        parts = parts[0].replace("\r\n", "\n"), parts[1].replace("\r\n", "\n")
    before, after = (_lines(part, is_last=not end) for part in parts)
    first, lines = old.count("\n", 0, start), []
    for group in SequenceMatcher(None, before, after).get_grouped_opcodes(_CONTEXT):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        lines.append(f"@@ -{first + i1 + 1},{i2 - i1} +{first + j1 + 1},{j2 - j1} @@")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [f" {line}" for line in before[i1:i2]]
            else:
                lines += [f"-{line}" for line in before[i1:i2]] + [f"+{line}" for line in after[j1:j2]]
    if len(lines) > MAX_LINES:
        return None
    shown = (visible(readable(line[: 4 * _MAX_SHOWN_CHARS])) for line in lines)
    return "\n".join(line if len(line) <= _MAX_SHOWN_CHARS else f"{line[:_MAX_SHOWN_CHARS]}…" for line in shown)


def line_count(text: str) -> int:
    """Return the number of lines in a text; the last one counts with or without its end."""
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def _window(old: str, new: str) -> tuple[int, int]:
    """Count the characters that both share at the start and at the end, less some lines of context."""
    most = min(len(old), len(new))
    start = _common(lambda at, to: old[at:to] == new[at:to], most)
    end = _common(lambda at, to: old[len(old) - to : len(old) - at] == new[len(new) - to : len(new) - at], most - start)
    for _ in range(_CONTEXT + 1):
        start = old.rfind("\n", 0, max(0, start)) if start > 0 else -1
    start += 1
    position = len(old) - end
    if end and position and old[position - 1] == "\n" == (new[len(new) - end - 1] if len(new) > end else "\n"):
        position -= 1  # a difference ends with its line, so the context begins right after it
    for _ in range(_CONTEXT + 1):
        position = old.find("\n", position) + 1 or len(old)
    return start, min(end, len(old) - position)


def _common(is_same: Callable[[int, int], bool], most: int) -> int:
    """Count how many of the first `most` characters agree: by pieces, then by bisecting the first piece that differs."""
    steps = range(0, most, _STEP)
    start = next((at for at in steps if not is_same(at, min(at + _STEP, most))), most)
    part = range(start, min(start + _STEP, most))
    return start + bisect_left(part, x=True, key=lambda at: not is_same(start, at + 1))


def _lines(text: str, *, is_last: bool) -> list[str]:
    """Split into lines, so that a missing line end at the end of the file shows as a difference."""
    *lines, last = text.split("\n")
    return [*lines, f"{last} [no newline at the end]" if is_last else last] if last else lines
