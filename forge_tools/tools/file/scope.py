"""Where a search looks: one open file, or a folder and of what is below it the part that was asked for."""

import asyncio
import codecs
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from hashlib import blake2b
from typing import Any

from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.folders import Changes, changes_since, open_allowed
from forge_tools.sandbox.paths.names import escape_path
from forge_tools.sandbox.paths.refusals import Protection
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.file.globs import by_path, compile_glob, only, plain_rule
from forge_tools.tools.file.hits import MatchSink, NameSink, Origin, Page
from forge_tools.tools.file.walk import Level, Walk

SearchAgain = Callable[[Sequence[str], NameSink], Awaitable[None]]
"""Searches files by these paths and feeds the sink."""

_BINARY_ENDINGS = (
    "pyc", "pyo", "so", "o", "a", "dylib", "dll", "exe", "class", "jar", "wasm", "png", "jpg", "jpeg", "gif", "webp", "ico",
    "bmp", "tiff", "pdf", "zip", "gz", "bz2", "xz", "zst", "tar", "tgz", "whl", "7z", "mp3", "mp4", "mov", "avi", "ogg",
    "woff", "woff2", "ttf", "otf", "eot", "sqlite", "sqlite3", "db", "bin", "dat", "npy", "npz", "parquet", "pkl",
)  # fmt: skip
_BINARY = re.compile(r"\0([^\0]*\.(?:" + "|".join(_BINARY_ENDINGS) + r"))(?=\0)")
_MAX_NAMED = 20
_MAX_TOLD = 300  # being told of each file that is binary costs more than the search where there are thousands of them
_OPEN_FILES = 100
_MAX_BYTES = 64 << 20
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class File:
    """A single file, which the program reads from standard input: no path is looked up a second time."""

    is_partial = has_ignored = tells_binaries = False
    rules = ""

    def __init__(self, file: Handle, root: Handle) -> None:
        self.file = file
        self.folder = root.fd

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
    """A folder to start in, and what of it the search program is told to leave out: what rules ignore, and what holds secrets.

    To make one takes the walk, on a thread. Paths are relative to the folder; those of folders in it end in a slash.
    """

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
        # What no line of rules can name is told apart afterwards.
        sayable = sorted(path for path in self._left_out if path.isprintable())
        self._odd_folders = tuple(path for path in self._left_out if path.endswith("/") and not path.isprintable())
        self.rules = (only(glob) if glob else "") + "".join(map(plain_rule, sayable))
        # A program that tells of binary files tells of each file that a glob chose, too.
        self.tells_binaries = self._glob is None and len(self._binary_names) + len(self._left_out) <= _MAX_TOLD
        inside = workspace.inside(handle)
        self._above = "" if inside == "." else f"{inside}/"
        self._shown_above = _prefix(workspace.shown(inside, handle))

    @property
    def has_ignored(self) -> bool:
        """Whether a search without ignore rules would look into more."""
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
        """Open a file that a search told of, if it is one that may be read."""
        return open_allowed(self._handle.root, self._above + path.removeprefix("./"), self.shown(path))

    def changes(self) -> Changes:
        """Look which folders have changed since they were walked through."""
        return changes_since(self._seen, self.folder)

    def searched(self, failed: Sequence[str]) -> int:
        """Count the files, given those (and folders) that a search without a glob complained of."""
        folders = {path for path, _ in self._faults}
        return self._files - sum(1 for path in failed if self.shown(path) not in folders)

    def warnings(self) -> list[str]:
        return [f"{path}: {reason}" for path, reason in self._faults]

    def facts(self, binary_files: int, binaries: list[str]) -> dict[str, Any]:
        """Count what is not searched: binary files by what is in them where that was told, else by their names."""
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
        self._binary_names += [level.path + name for name in _BINARY.findall("\0".join(["", *level.files, ""]))]


class Recheck:
    """A look by our own handles at what a search has told of, where folders changed under it and may have led it outside.

    `unsure` says which folders those are. What is inside stays. The rest is forgotten, and `lost` names its folders.
    """

    def __init__(self, place: Folder, unsure: Changes) -> None:
        self._lost: dict[str, None] = {}
        self._place = place
        self._unsure = unsure

    async def names(self, sink: NameSink, again: SearchAgain) -> None:
        """Search the files that are in doubt once more, each opened by us."""
        counts, names = sink.counts(), sink.first()
        right = {name: counts[name] for name in names if not self.is_unsure(name)}
        doubtful = [name for name in names if name not in right]
        for index in range(0, len(doubtful), _OPEN_FILES):
            right |= await self._found_again(doubtful[index : index + _OPEN_FILES], counts, again)
        self._forget(name for name in names if name not in right)
        sink.keep(right)

    async def lines(self, sink: MatchSink) -> None:
        """Look whether the lines that are in doubt stand in the files that we can open, where they were found."""
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
    """What all paths below begin with; None where the working directory may be one of them, which begins otherwise."""
    if shown.startswith(".."):
        return None
    return "" if shown == "." else f"{shown.rstrip('/')}/"


def _stands(origin: Origin, handle: Handle) -> bool:
    """Whether the file has these bytes there; of one that is searched as UTF-8 and is not, in what it is as UTF-8."""
    if origin.digest is None:
        return False
    if os.pread(handle.fd, 3, 0).startswith(_MARKS):
        text = _as_utf8(os.pread(handle.fd, _MAX_BYTES, 0))
        data = text[origin.offset : origin.offset + origin.length]
    else:
        data = os.pread(handle.fd, origin.length, origin.offset)
    return blake2b(data, digest_size=16).digest() == origin.digest


def _as_utf8(data: bytes) -> bytes:
    """Take a byte order mark off, and turn what it says is UTF-16 into UTF-8."""
    if data.startswith(codecs.BOM_UTF8):
        return data.removeprefix(codecs.BOM_UTF8)
    return data.decode("utf-16", "replace").encode()
