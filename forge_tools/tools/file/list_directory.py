"""ListDirectory: the content of a folder, within a budget."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

from forge_tools.errors import SandboxError
from forge_tools.model import ToolCategory, ToolResult
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.folders import Entry, enter, look_at, scan
from forge_tools.sandbox.paths.refusals import PROTECTED, escape_path
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import GLOBS, PATH, Deadline, LookingTool, counted, option
from forge_tools.tools.file.globs import Names, Rules, excluding

_NOTE_ROOM = 200  # characters of the output reserved for the notes after the entries
_CHECK_EVERY = 1000
_SECOND_NS = 1_000_000_000
_ENTRIES = ("entry", "entries")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    path: str = option("Folder to list, by default the working directory.", ".", aliases=("file_path",), **PATH)
    depth: int = option("How many levels of folders to list.", 1, minimum=1, maximum=10)
    ignore: Sequence[str] | None = option(
        "Globs to leave out, relative to path: node_modules, *.pyc (in every folder), docs/*.html.",
        None,
        **GLOBS,
    )
    hidden: bool = option("List names that start with a dot too.", default=True)
    details: bool = option("Show mode, size in bytes and time of the last change.", default=False)
    sort: Literal["name", "size", "mtime"] = option(
        "name: folders first; size: largest first; mtime: newest first.", "name"
    )
    limit: int = option("How many entries to list at most.", 1000, minimum=1, maximum=10_000)


class ListDirectory(LookingTool):
    """List the entries of a folder in the workspace, folders first; with a depth, as a tree."""

    name = "ListDirectory"
    aliases = ("list_directory", "LS")
    category = ToolCategory.FILE
    options = _Wish

    def _answer(self, wish: _Wish, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
        return _Listing(wish, deadline, max_chars).run(workspace)


class _Listing:
    """Runs on a thread; it answers with what it has when its time is up."""

    def __init__(self, wish: _Wish, deadline: Deadline, max_chars: int) -> None:
        self._wish = wish
        self._deadline = deadline
        self._ignored = excluding(wish.ignore or ())
        self._room = max(1, max_chars - _NOTE_ROOM)
        self._lines: list[str] = []
        self._facts: list[dict[str, Any]] = []
        self._seen = 0
        self._is_cut = self._is_partial = False

    def run(self, workspace: Workspace) -> ToolResult:
        with workspace.open_folder(self._wish.path) as folder:
            self._list(folder, self._entries(folder, ""), "", 0)
        shown = len(self._lines)
        facts: dict[str, Any] = {"shown_entries": shown, "truncated": self._is_cut or self._is_partial}
        if not self._is_partial and not (self._is_cut and self._wish.depth > 1):
            facts["total_entries"] = self._seen
        if self._is_partial:
            facts["partial"] = True
        return ToolResult.ok("\n".join([*self._lines, self._note(shown)]), entries=self._facts, **facts)

    def _list(self, folder: Handle, entries: list[Entry], above: str, level: int) -> None:
        self._seen += len(entries)
        for entry in entries:
            if self._is_full():
                return
            look_at(folder, entry)
            if not entry.is_folder or self._wish.depth == 1:  # nearly every entry
                self._add(entry, above, level, "")
                continue
            try:
                self._list_inside(folder, entry, above, level)
            except SandboxError as refused:
                self._add(entry, above, level, " [protected]" if refused.code == PROTECTED else " [unreadable]")

    def _list_inside(self, folder: Handle, entry: Entry, above: str, level: int) -> None:
        is_last, path = level + 1 == self._wish.depth, f"{above}{entry.name}/"
        with enter(folder, entry.name) as inner:
            below = self._entries(inner, path)
            self._add(entry, above, level, f" ({counted(len(below), *_ENTRIES)})" if is_last else "")
            if not is_last:
                self._list(inner, below, path, level + 1)

    def _entries(self, folder: Handle, above: str) -> list[Entry]:
        entries = scan(folder)
        if not self._wish.hidden:
            entries = [entry for entry in entries if not entry.name.startswith(".")]
        if self._ignored is not None:
            entries = _without(entries, self._ignored, above)
        if self._wish.sort == "name":
            folders = [entry for entry in entries if entry.is_folder]
            others = [entry for entry in entries if not entry.is_folder]
            return [*sorted(folders, key=_bytes_of), *sorted(others, key=_bytes_of)]
        for number, entry in enumerate(entries):
            if number % _CHECK_EVERY == 0 and self._deadline.is_over:
                self._is_partial = True
                break
            look_at(folder, entry)
        what = "size" if self._wish.sort == "size" else "mtime_ns"
        return sorted(entries, key=lambda entry: (-(getattr(entry, what) or 0), os.fsencode(entry.name)))

    def _is_full(self) -> bool:
        self._is_cut = self._is_cut or len(self._lines) >= self._wish.limit or self._room <= 0
        self._is_partial = self._is_partial or (len(self._lines) % _CHECK_EVERY == 0 and self._deadline.is_over)
        return self._is_cut or self._is_partial

    def _add(self, entry: Entry, above: str, level: int, note: str) -> None:
        line = f"{'  ' * level}{_details(entry) if self._wish.details else ''}{_name(entry)}{note}"
        if self._lines and len(line) + 1 > self._room:
            self._room, self._is_cut = 0, True
            return
        self._room -= len(line) + 1
        self._lines.append(line)
        self._facts.append(_facts(entry, above))

    def _note(self, shown: int) -> str:
        if self._is_partial:
            return f"({shown:,} entries shown: the call's time ran out)"
        if not self._is_cut:
            return f"({counted(self._seen, *_ENTRIES)})"
        more = "more than " if self._wish.depth > 1 else ""
        way = "Pass a larger limit, ignore, or the path of a folder in it"
        return f"({more}{counted(self._seen, *_ENTRIES)}, {shown:,} shown. {way})"


def _without(entries: list[Entry], ignored: Rules, above: str) -> list[Entry]:
    """Drop what these globs would ignore as lines of a .gitignore."""
    out: set[tuple[str, bool]] = set()
    for are_folders in (False, True):
        names = Names(entry.name for entry in entries if entry.is_folder is are_folders)
        out.update((name, are_folders) for name in ignored.decide(names, above, are_folders=are_folders)[0])
    return [entry for entry in entries if (entry.name, entry.is_folder) not in out]


def _bytes_of(entry: Entry) -> bytes:
    return entry.name.encode("utf-8", "surrogateescape")  # like os.fsencode, without determining the codec each time


def _name(entry: Entry) -> str:
    name = escape_path(entry.name)
    if entry.is_folder:
        return f"{name}/"
    if entry.kind == "link":
        return f"{name} -> {'[outside]' if entry.target is None else entry.target}"
    return name if entry.kind == "file" else f"{name} [{entry.type or 'gone'}]"


def _details(entry: Entry) -> str:
    if entry.mode is None or entry.mtime_ns is None:
        return f"{'?' * 9} {'?':>12} {'?':>20}  "
    return f"{stat.filemode(entry.mode)[1:]} {entry.size:>12,} {_moment(entry.mtime_ns // _SECOND_NS)}  "


def _facts(entry: Entry, above: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": escape_path(f"{above}{entry.name}"), "type": entry.type or entry.kind}
    if entry.mode is not None and entry.mtime_ns is not None:
        facts |= {"size": entry.size, "mtime": _moment(entry.mtime_ns // _SECOND_NS), "mode": f"{entry.mode:04o}"}
    if entry.kind == "link":
        facts["target"] = entry.target
    return facts


@lru_cache(maxsize=1024)
def _moment(seconds: int) -> str:
    """Format a time; the files of one folder often share it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
