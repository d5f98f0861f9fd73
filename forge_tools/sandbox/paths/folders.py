"""Folders below an open handle: listed, entered and read without ever following a link; detects which have changed."""

import errno
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, get_args

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.confinement import ENTER_FOLDER, OPEN_FILE, Descriptor, Handle, OpenRoot
from forge_tools.sandbox.paths.refusals import escape_path, refusing

Sighting = tuple[int, int, int]
"""Device, inode and time of the last change of a folder. The kernel sets that time, and nobody can set it back."""

_MAX_BYTES = 64 << 20
_OTHERS = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
# CLOCK_REALTIME_COARSE, which Python does not name: on Linux, the source of file times.
_COARSE_CLOCK = 5 if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_REALTIME
_TICK_SECONDS = 0.01
_MAX_PAUSES = 3
_UNKNOWN = -1
_SECOND_NS = 1_000_000_000

Kind = Literal["file", "directory", "link", "other"]
_KINDS: tuple[Kind, ...] = get_args(Kind)


class Look:
    """Checks open folders before they are listed.

    One that changed in the current clock tick could change again and show the same time, so it is checked again after
    the tick: a few times; a folder that keeps changing counts as changed.
    """

    def __init__(self) -> None:
        self._pauses = 0

    def at(self, folder: int) -> Sighting:
        status = os.fstat(folder)
        while status.st_ctime_ns >= time.clock_gettime_ns(_COARSE_CLOCK) and self._pauses < _MAX_PAUSES:
            self._pauses += 1
            time.sleep(_TICK_SECONDS)
            status = os.fstat(folder)
        changed = status.st_ctime_ns
        is_fresh = changed >= time.clock_gettime_ns(_COARSE_CLOCK)
        # Some file systems store whole seconds.
        is_coarse = changed % _SECOND_NS == 0 and time.time_ns() - changed < 2 * _SECOND_NS
        return status.st_dev, status.st_ino, _UNKNOWN if is_fresh or is_coarse else changed


class Changes:
    """The folders below an open one (itself is "") that may have changed since they were seen; they end in a slash."""

    def __init__(self, seen: Mapping[str, Sighting], folder: int) -> None:
        self._seen = seen
        self._changed = frozenset(path for path, sighting in seen.items() if _now(folder, path) != sighting)
        self._known: dict[str, str | None] = {}

    def __bool__(self) -> bool:
        return bool(self._changed)

    def above(self, path: str) -> str | None:
        """Return the first folder on a path that has changed or was never seen; None if all are unchanged."""
        folder = path[: path.rfind("/") + 1]
        if folder not in self._known:
            ways = ("", *(folder[: at + 1] for at, char in enumerate(folder) if char == "/"))
            self._known[folder] = next((one for one in ways if one in self._changed or one not in self._seen), None)
        return self._known[folder]


def open_allowed(root: OpenRoot, inside: str, shown: str) -> Handle | None:
    """Open a regular file by its path below a root; None if it is gone, leads out or is protected."""
    with suppress(OSError, SandboxError):
        handle = root.admit(root.open(inside, OPEN_FILE), shown)
        if handle.is_file:
            return handle
        handle.close()
    return None


def _now(folder: int, path: str) -> Sighting | None:
    try:
        # A link on the path leads to a different folder from the one seen, and is so noticed.
        status = os.stat(path or ".", dir_fd=folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


@dataclass(slots=True)
class Entries:
    """The names in a folder by type; `others` are sockets, FIFOs and devices."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


class Folder(Descriptor):
    """An open folder. Names are single components, with surrogate escapes; every method raises the kernel's OSError."""

    def __init__(self, fd: int, name: str = ".") -> None:
        """Open a folder in the one that `fd` has open, or that folder itself by a new handle."""
        self.fd = os.open(name, ENTER_FOLDER, dir_fd=fd)

    def enter(self, name: str) -> "Folder":
        """Open a folder in this one; a link is refused, wherever it leads."""
        return Folder(self.fd, name)

    def read(self, name: str) -> bytes:
        """Read a regular file of at most 64 MiB; anything else is an OSError."""
        fd = os.open(name, OPEN_FILE | os.O_NOFOLLOW, dir_fd=self.fd)
        with os.fdopen(fd, "rb") as file:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise OSError(f"{name} is not a regular file")
            if facts.st_size > _MAX_BYTES:
                raise OSError(f"{name} is larger than {_MAX_BYTES:,} bytes")
            return file.read(_MAX_BYTES)

    def stat(self, name: str) -> os.stat_result:
        """Return the facts of an entry, not following a link."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)


@dataclass(slots=True)
class Entry:
    """`target` is where a link leads, as people may see it; None if that is outside the workspace."""

    name: str
    kind: Kind
    type: str = ""
    size: int | None = None
    mtime_ns: int | None = None
    mode: int | None = None
    target: str | None = None

    @property
    def is_folder(self) -> bool:
        return self.kind == "directory"


def scan(folder: Handle) -> list[Entry]:
    """List an open folder in arbitrary order."""
    with refusing(folder.name, "list"):
        found = entries_of(folder.fd)
    kinds = zip(_KINDS, (found.files, found.folders, found.links, found.others), strict=True)
    return [Entry(name, kind) for kind, names in kinds for name in names]


def look_at(folder: Handle, entry: Entry) -> None:
    """Fill in the facts of an entry; one that is gone by now gets none."""
    try:
        status = os.stat(entry.name, dir_fd=folder.fd, follow_symlinks=False)
    except OSError:
        return
    mode = status.st_mode
    entry.size, entry.mtime_ns, entry.mode = status.st_size, status.st_mtime_ns, mode & 0o7777
    entry.type = _OTHERS.get(stat.S_IFMT(mode), entry.kind)
    if entry.kind == "link":
        entry.target = _target(folder, entry.name)


def enter(folder: Handle, name: str) -> Handle:
    """Open a folder in a folder; a link put in its place meanwhile is refused."""
    shown = escape_path(name) if folder.name == "." else f"{folder.name.rstrip('/')}/{escape_path(name)}"
    with refusing(shown):
        fd = os.open(name, ENTER_FOLDER, dir_fd=folder.fd)
    return folder.root.admit(fd, shown)


def entries_of(folder: int) -> Entries:
    """List an open folder in arbitrary order; errors are the kernel's."""
    found = Entries()
    file, directory = found.files.append, found.folders.append
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                file(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                directory(entry.name)
            else:
                (found.links if entry.is_symlink() else found.others).append(entry.name)
    return found


def _target(folder: Handle, name: str) -> str | None:
    """Return where a link leads, relative to the root if it is absolute; None if outside."""
    inside = folder.root.truly_below(folder.fd)
    try:
        target = os.readlink(name, dir_fd=folder.fd)
    except OSError:
        return ""
    try:
        os.close(folder.root.open(f"{inside or '.'}/{name}", OPEN_FILE))
    except OSError as error:
        if error.errno == errno.EXDEV:  # any other, such as that of a broken link, does not lead out
            return None
    below = folder.root.below(target) if target.startswith("/") else None
    return escape_path(target if below is None else below)
