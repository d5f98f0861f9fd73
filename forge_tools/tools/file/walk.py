"""What lies below a folder of the workspace, and what rules leave out: the list that every search starts from."""

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.folders import Entries, Folder, Look, Sighting, entries_of, open_allowed
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import Deadline
from forge_tools.tools.file.globs import Names, Rules, TooManyRulesError

Answer = TypeVar("Answer")

GIT = ".git"
MAX_DEPTH = 256
_RULE_FILES = (".gitignore", ".ignore", ".rgignore")
_HEADER = struct.Struct(">4sII")
_STAT_BYTES = 40
_MODE_AT = 24
_MODES = {0o040000, 0o100644, 0o100664, 0o100755, 0o120000, 0o160000}
_EXTENDED = 0x4000
_LENGTH = 0x0FFF
_MAX_KEPT = 8
_parsed = lru_cache(maxsize=512)(Rules)


@dataclass(slots=True)
class Level:
    """One folder: its requested content, and what is left out. `path` is "" or ends in a slash.

    The iterating code may remove names from `folders`, which are entered next.
    """

    path: str
    folder: Folder
    files: list[str]
    folders: list[str]
    links: list[str]
    others: list[str]
    ignored: set[str] = field(default_factory=set)
    ignored_folders: set[str] = field(default_factory=set)


class Tracked(NamedTuple):
    """Tracked paths, and the folders on the way to them, relative to the repository."""

    files: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()


NOTHING = Tracked()

_kept_indexes: dict[tuple[int, ...], Tracked] = {}


@dataclass(frozen=True, slots=True)
class _Ground:
    """The rules in force in a folder: for each kind of file, its folder (as `Level.path`) and its rules."""

    said: tuple[tuple[tuple[str, Rules], ...], ...] = ((), (), ())
    repository: str = ""
    tracked: Tracked = NOTHING
    is_ignored: bool = False


class Walk:
    """Walks a folder, top down. Links are listed and never followed; `.git` is left out.

    Paths are relative to that folder. `faults` lists what could not be read, as people see it, and why. With
    `keeps_sightings`, `seen` holds the state of each folder just before it was listed.
    """

    def __init__(
        self, workspace: Workspace, target: Handle, deadline: Deadline, *, respect_ignore: bool = True, hidden: bool = True,
        keeps_sightings: bool = False,
    ) -> None:  # fmt: skip
        self.faults: list[tuple[str, str]] = []
        self.seen: dict[str, Sighting] = {}
        self.is_partial = False
        self._look = Look() if keeps_sightings else None
        self._workspace = workspace
        self._target = target
        self._deadline = deadline
        self._respects = respect_ignore
        self._hidden = hidden
        inside = workspace.inside(target)
        self._above = "" if inside == "." else f"{inside}/"

    def shown(self, path: str) -> str:
        return self._workspace.shown(self._above + path, self._target.root)

    def open(self, path: str) -> Handle | None:
        """Open a regular file; None if it is gone, leads out or is protected."""
        return open_allowed(self._target.root, self._above + path, self.shown(path))

    def levels(self) -> Iterator[Level]:
        """Yield each folder before those in it."""
        todo = [(Folder(self._target.fd), ".", self._above, self._ground_above())]
        while todo:
            if self._deadline.is_over:
                self.is_partial = True
                return
            above, name, path, ground = todo.pop()
            try:
                folder = above.enter(name)
                sighting = self._look.at(folder.fd) if self._look else None
                entries = entries_of(folder.fd)
            except OSError as error:
                self._fault(path, error)
                continue
            if sighting:
                self.seen[path[len(self._above) :]] = sighting
            ground = self._ground_in(ground, path, folder, entries) if self._respects else ground
            level = self._level(path, folder, ground, entries)
            yield level
            if level.folders and level.path.count("/") >= MAX_DEPTH:
                self._fault(path, OSError(f"it is deeper than {MAX_DEPTH} folders"))
                continue
            for name in sorted(level.folders, reverse=True):
                is_ignored = name in level.ignored_folders
                inner = replace(ground, is_ignored=True) if is_ignored else ground
                todo.append((folder, name, f"{path}{name}/", inner))

    def _level(self, path: str, folder: Folder, ground: _Ground, entries: Entries) -> Level:
        folders = [name for name in entries.folders if name != GIT]
        level = Level(path[len(self._above) :], folder, entries.files, folders, entries.links, entries.others)
        if not self._hidden:
            for names in (level.files, level.folders, level.links, level.others):
                names[:] = [name for name in names if not name.startswith(".")]
        if GIT in level.files:
            level.files.remove(GIT)
        if self._respects:
            self._leave_out(level, path, ground)
        return level

    def _leave_out(self, level: Level, path: str, ground: _Ground) -> None:
        plain = [*level.files, *level.links, *level.others]
        level.ignored = _ignored(ground, path, plain, are_folders=False)
        out = _ignored(ground, path, level.folders, are_folders=True)
        if level.ignored:
            for names in (level.files, level.links, level.others):
                names[:] = [name for name in names if name not in level.ignored]
        if out:
            below = path[len(ground.repository) :]
            # Tracked files are looked for even in an ignored folder; nothing else in there is.
            entered = {name for name in out if below + name in ground.tracked.folders}
            level.folders[:] = [name for name in level.folders if name not in out or name in entered]
            level.ignored_folders = out

    def _ground_above(self) -> _Ground:
        """Gather the rules from the root to the target. If they ignore the target, none apply: the caller named it."""
        ground, path = _Ground(), ""
        if not self._above or not self._respects:
            return ground
        with self._workspace.open_root(self._target) as root:
            folder = Folder(root.fd)
            for name in self._above.split("/")[:-1]:
                try:
                    ground = self._ground_in(ground, path, folder, entries_of(folder.fd))
                    folder = folder.enter(name)
                except OSError as error:
                    self._fault(path, error)
                    return ground
                if _ignored(ground, path, [name], are_folders=True):
                    return _Ground()
                path += f"{name}/"
        return ground

    def _ground_in(self, ground: _Ground, path: str, folder: Folder, entries: Entries) -> _Ground:
        """Add the rule files of this folder. In the root of a repository, .gitignore files above it do not apply."""
        if GIT in entries.folders:
            rules = self._read(
                lambda: _rules_in(folder.enter(GIT).enter("info"), "exclude"), f"{path}.git/info/exclude"
            )
            tracked = self._read(lambda: tracked_by(folder.enter(GIT)), f"{path}.git/index")
            ground = _Ground((((path, rules),) if rules else (), *ground.said[1:]), path, tracked or NOTHING)
        elif GIT in entries.files:  # a worktree or submodule: its repository is kept elsewhere
            ground = _Ground(((), *ground.said[1:]), path)
        for kind, name in enumerate(_RULE_FILES):
            if name in entries.files and (rules := self._read(partial(_rules_in, folder, name), f"{path}{name}")):
                said = list(ground.said)
                said[kind] = (*said[kind], (path, rules))
                ground = replace(ground, said=tuple(said))
        return ground

    def _read(self, read: Callable[[], Answer], path: str) -> Answer | None:
        try:
            return read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except TooManyRulesError as error:
            self._fault(path, OSError(f"its rules are not applied: {error}"))
        except OSError as error:
            self._fault(path, error)
        return None

    def _fault(self, path: str, error: OSError) -> None:
        shown = self._workspace.shown(path.rstrip("/") or ".", self._target.root)
        self.faults.append((shown, error.strerror or str(error)))


def tracked_by(git: Folder) -> Tracked:
    """Read the index of an open `.git` folder; a missing or unknown one tracks nothing, an unreadable one is an OSError."""
    try:
        facts = git.stat("index")
        key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        tracked = _kept_indexes.get(key)
        if tracked is None:
            tracked = parse_index(git.read("index"))
            if len(_kept_indexes) >= _MAX_KEPT:
                _kept_indexes.clear()
            _kept_indexes[key] = tracked
        return tracked
    except FileNotFoundError:
        return NOTHING


def parse_index(data: bytes) -> Tracked:
    """Read an index of version 2 to 4, with SHA-1 or SHA-256 names of objects."""
    # By hand, since git runs programs that a repository's settings name. An index does not say which hash it uses.
    for hash_bytes in (20, 32):
        try:
            files = _tracked_files(data, hash_bytes)
        except (ValueError, struct.error, IndexError):
            continue
        folders = {path[: path.rindex("/")] for path in files if "/" in path}
        above = {name[:index] for name in folders for index, char in enumerate(name) if char == "/"}
        return Tracked(frozenset(files), frozenset(folders | above))
    return NOTHING


def _rules_in(folder: Folder, name: str) -> Rules:
    return _parsed(folder.read(name))


def _ignored(ground: _Ground, path: str, plain: list[str], *, are_folders: bool) -> set[str]:
    """Return the names in a folder that rules ignore. Later kinds of rule files take precedence."""
    out: set[str] = set(plain) if ground.is_ignored else set()
    names = Names(plain)
    for said in () if ground.is_ignored else reversed(ground.said):
        for base, rules in reversed(said):
            ignored, kept = rules.decide(names, path[len(base) :], are_folders=are_folders)
            out |= ignored
            if ignored or kept:
                names = Names(names.all - ignored - kept)
    if out and ground.tracked.files:
        below = path[len(ground.repository) :]
        out = {name for name in out if below + name not in ground.tracked.files}
    return out


def _tracked_files(data: bytes, hash_bytes: int) -> set[str]:
    magic, version, count = _HEADER.unpack_from(data)
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index")
    files: set[str] = set()
    position, name = _HEADER.size, b""
    for _ in range(count):
        if int.from_bytes(data[position + _MODE_AT : position + _MODE_AT + 4]) not in _MODES:
            raise ValueError("not an entry")
        flags = position + _STAT_BYTES + hash_bytes
        facts = int.from_bytes(data[flags : flags + 2])
        begin = flags + (4 if facts & _EXTENDED else 2)
        dropped = 0
        if version == 4:
            dropped, begin = _varint(data, begin)
        end = data.index(b"\0", begin)
        name = name[: len(name) - dropped] + data[begin:end] if version == 4 else data[begin:end]
        if facts & _LENGTH != min(len(name), _LENGTH):
            raise ValueError("not an entry")
        files.add(os.fsdecode(name))
        # Before version 4, 1 to 8 NUL bytes end an entry, so that its length is a multiple of 8.
        position = end + 1 if version == 4 else position + ((end - position) // 8 + 1) * 8
    return files


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Read how many bytes of the previous name are dropped, encoded like offsets in pack files."""
    value = data[position] & 0x7F
    while data[position] & 0x80:
        position += 1
        value = (value + 1 << 7) | (data[position] & 0x7F)
    return value, position + 1
