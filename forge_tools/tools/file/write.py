"""Write: a whole file, created or replaced at once."""

from dataclasses import dataclass
from typing import Any, Literal

from forge_tools.errors import SandboxError
from forge_tools.model import ToolCategory, ToolResult
from forge_tools.sandbox.paths.files import Snapshot
from forge_tools.sandbox.paths.places import Check, Place
from forge_tools.sandbox.paths.refusals import NOT_FOUND, STALE
from forge_tools.tools.builtin import PATH, counted, option
from forge_tools.tools.file.changes import Change, ChangingTool, facts_of, line_count, require_match, unified
from forge_tools.tools.file.text import Encoding, decoded, encode, encoding_for, eol_of, with_eol

MAX_CHARS = 10_000_000


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
        """Decide the bytes, or refuse; nothing is touched."""
        self._check(place, seen)
        encoding = encoding_for(seen.head if seen else None, self.encoding)
        old = decoded(seen.data, encoding) if seen and seen.data is not None else None
        text = self._with_line_ends(old)
        mark = b"" if text.startswith("\ufeff") else encoding.bom
        data = mark + encode(text, encoding, place.shown, "content")
        facts = facts_of(seen, data) | self._facts(text, encoding)
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

    def _facts(self, text: str, encoding: Encoding) -> dict[str, Any]:
        facts: dict[str, Any] = {"lines": line_count(text), "encoding": encoding.name, "eol": eol_of(text)}
        if text != self.content:
            facts["line_endings_changed"] = True
        return facts

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
