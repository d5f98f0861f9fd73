"""Files as last seen, replaced atomically, and deleted; folders with all their content.

Deletion uses only open handles: it follows no link, however fast one is put there.
"""

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.confinement import ENTER_FOLDER, OPEN_FILE, Descriptor
from forge_tools.sandbox.paths.places import Check, Place, require_own
from forge_tools.sandbox.paths.refusals import MAX_NAME_BYTES, PERMISSION_DENIED, STALE, escape_path, refusal, refusing

KEPT_BYTES = 64 << 20
"""Up to this size, the bytes themselves are kept."""

_CHUNK_BYTES = 1 << 20
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_EXECUTE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_SUFFIX = ".forge-tmp"
_OWN_FILES = "/proc/self/fd"
_LISTED = 20
_CHECK_EVERY = 1000

DirEntry = os.DirEntry[str]

Visit = Callable[[int, str, list[DirEntry]], None]
"""Called with an open folder, its path as people may see it, and its entries, before its subfolders are visited."""

digest = partial(blake2b, digest_size=16)
"""Begins what becomes an etag; takes a file piece by piece."""


def etag_of(data: bytes | blake2b) -> str:
    """Return the etag of a file with these bytes: a short name, by which a writer detects concurrent writes."""
    return f"b2:{(digest(data) if isinstance(data, bytes) else data).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`data` is None if the file is larger than `KEPT_BYTES`; `head` is its beginning."""

    head: bytes
    data: bytes | None
    status: os.stat_result
    etag: str


def take_snapshot(place: Place, check: Check) -> Snapshot | None:
    """Read the regular file at a place; None if nothing is there."""
    file = place.open()
    if file is None:
        return None
    with file, refusing(place.shown, "read"):
        return _read(file.fd, check)


def etag_at(place: Place, check: Check) -> str | None:
    """Return the etag of the file at a place; None if there is nothing that could have one."""
    try:
        snapshot = take_snapshot(place, check)
    except SandboxError:
        return None
    return snapshot.etag if snapshot else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """`seen` is the file to replace, None if there is none. `is_executable` None keeps the old mode."""

    data: bytes
    seen: os.stat_result | None
    is_executable: bool | None = None

    def mode(self, new: int) -> int:
        """Return the permissions of the new file; set-id bits apply only to the old bytes."""
        mode = stat.S_IMODE(self.seen.st_mode) & 0o1777 if self.seen else new
        if self.is_executable is None:
            return mode
        return mode | (mode & 0o444) >> 2 if self.is_executable else mode & ~_EXECUTE


def temporary_name(name: str) -> str:
    """Return a name beside a file for its new bytes, short enough for every file system."""
    end = f".{secrets.token_hex(4)}{_SUFFIX}"
    start = os.fsencode(name)[: MAX_NAME_BYTES - len(end) - 1]
    return f".{os.fsdecode(start)}{end}"


def replace_file(place: Place, replacement: Replacement, temporary: str, check: Check) -> None:
    """Write a temporary file beside the old one and put it in its place; the folder must be locked.

    `check` is called between pieces; if it raises, the old file stays as it was, and no temporary one is left.
    """
    # The old file may have been closed to others: so are the new bytes, until `_dress` copies its permissions.
    mode = 0o600 if replacement.seen else 0o666
    with refusing(place.shown, "write"):
        unnamed = _open_unnamed(place.fd, mode)
        fd = os.open(temporary, _CREATE, mode, dir_fd=place.fd) if unnamed is None else unnamed
    try:
        try:
            _fill(fd, replacement, check)
            _dress(place, fd, replacement)
            os.fsync(fd)
            if unnamed is not None:
                # By /proc, as linking a handle takes a capability; to another name, as a link replaces nothing.
                os.link(f"{_OWN_FILES}/{fd}", temporary, dst_dir_fd=place.fd, follow_symlinks=True)
        finally:
            os.close(fd)
        place.require_unchanged(replacement.seen)
        os.rename(temporary, place.name, src_dir_fd=place.fd, dst_dir_fd=place.fd)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=place.fd)
        if isinstance(error, OSError):
            raise refusal(error, place.shown, "write") from error
        raise
    with suppress(OSError):  # some network file systems cannot; the name itself is in place
        os.fsync(place.fd)


def set_executable(place: Place, replacement: Replacement) -> None:
    flags = OPEN_FILE | os.O_NOFOLLOW
    with refusing(place.shown, "change the mode of"), Descriptor(os.open(place.name, flags, dir_fd=place.fd)) as file:
        os.fchmod(file.fd, replacement.mode(0))


@dataclass(slots=True)
class Survey:
    """The content of a folder, links counted as files; `first` are some of its paths."""

    files: int = 0
    folders: int = 0
    bytes: int = 0
    first: list[str] = field(default_factory=list)


def survey(place: Place, check: Check) -> Survey:
    """Count what would be deleted with the folder at a place; refuse if any of it is protected."""
    found = Survey()

    def visit(folder: int, shown: str, entries: list[DirEntry]) -> None:
        if os.fstat(folder).st_mode & stat.S_ISVTX:
            for entry in entries:
                require_own(folder, entry.stat(follow_symlinks=False), f"{shown}/{escape_path(entry.name)}")
        files = [entry for entry in entries if not entry.is_dir(follow_symlinks=False)]
        found.files += len(files)
        found.folders += len(entries) - len(files)
        found.bytes += sum(entry.stat(follow_symlinks=False).st_size for entry in files)
        found.first += [f"{shown}/{escape_path(entry.name)}" for entry in files[: _LISTED - len(found.first)]]

    _walk(place, check, visit, lambda _folder, _name: None)
    return found


def remove_tree(place: Place, check: Check) -> None:
    """Delete the folder at a place; what was added since a survey is checked too. A refusal says if a part is gone."""
    removed = 0

    def visit(folder: int, _shown: str, entries: list[DirEntry]) -> None:
        nonlocal removed
        for number, entry in enumerate(entries):
            if number % _CHECK_EVERY == 0:
                check()
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
                removed += 1

    try:
        _walk(place, check, visit, lambda folder, name: os.rmdir(name, dir_fd=folder))
    except SandboxError as error:
        if not removed:
            raise
        files = "1 file" if removed == 1 else f"{removed:,} files"
        gone = f"{files} of {place.shown.rstrip('/')} {'is' if removed == 1 else 'are'} deleted"
        raise SandboxError(f"{error.message}. The rest is unchanged; {gone}", error.code) from error


def remove_file(place: Place) -> None:
    """Delete what is at a place and is no folder; for a link, the link itself."""
    with refusing(place.shown, "delete"):
        os.unlink(place.name, dir_fd=place.fd)


def _read(fd: int, check: Check) -> Snapshot:
    status = os.fstat(fd)
    first = min(status.st_size, KEPT_BYTES) + 1  # nearly always all and its end: pieces would have to be joined
    seen, chunks, size = digest(), list[bytes](), 0
    while chunk := os.read(fd, _CHUNK_BYTES if chunks else first):
        check()
        seen.update(chunk)
        size += len(chunk)
        chunks.append(chunk)
        if size > KEPT_BYTES:
            del chunks[1:]
    data = b"".join(chunks) if size <= KEPT_BYTES else None
    return Snapshot(b"".join(chunks[:1])[:_CHUNK_BYTES], data, status, etag_of(seen))


def _open_unnamed(folder: int, mode: int) -> int | None:
    """Open a file without a name, so that a killed process leaves nothing. None if there are no such files."""
    flag: int = getattr(os, "O_TMPFILE", 0)
    if not flag or not os.access(_OWN_FILES, os.X_OK):
        return None
    try:
        return os.open(".", os.O_WRONLY | flag | os.O_CLOEXEC, mode, dir_fd=folder)
    except OSError:  # unsupported by the file system; or an error that the named way reports better
        return None


def _fill(fd: int, replacement: Replacement, check: Check) -> None:
    left = memoryview(replacement.data)
    while left:
        check()
        left = left[os.write(fd, left[:_CHUNK_BYTES]) :]
    check()


def _dress(place: Place, fd: int, replacement: Replacement) -> None:
    """Give the new file the owner, extended attributes and permissions of the old one, as far as allowed."""
    old = replacement.seen
    made = os.fstat(fd)
    if old is not None:
        if (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid):
            with suppress(PermissionError):
                os.fchown(fd, old.st_uid, old.st_gid)
        _copy_attributes(place, fd)
    mode = replacement.mode(stat.S_IMODE(made.st_mode))
    if mode != stat.S_IMODE(made.st_mode):
        os.fchmod(fd, mode)


def _copy_attributes(place: Place, fd: int) -> None:
    """Copy access lists and the user's attributes; capabilities, like set-id bits, applied to the old bytes."""
    system: Any = os  # which has these functions only on Linux
    if not hasattr(os, "listxattr"):
        return
    with suppress(OSError, SandboxError):
        if (old := place.open()) is None:
            return
        with old:
            for name in system.listxattr(old.fd):
                if name.startswith("user.") or name == "system.posix_acl_access":
                    with suppress(OSError):
                        system.setxattr(fd, name, system.getxattr(old.fd, name))


class _Level(NamedTuple):
    name: str
    identity: tuple[int, int]
    folders: list[str]


def _walk(place: Place, check: Check, visit: Visit, leave: Callable[[int, str], None]) -> None:
    """Walk a tree of any depth with two open handles; each way back up must lead to where it came from.

    `leave` is called with an open folder and the name of a finished subfolder.
    """
    levels: list[_Level] = []
    with refusing(place.shown, "delete"):
        folder = os.open(place.name, ENTER_FOLDER, dir_fd=place.fd)
        try:
            levels.append(_visited(place, levels, place.name, folder, visit))
            while True:
                check()
                if levels[-1].folders:
                    name = levels[-1].folders.pop()
                    folder = _step(folder, name)
                    levels.append(_visited(place, levels, name, folder, visit))
                    continue
                done = levels.pop()
                if not levels:
                    break
                folder = _step(folder, "..")
                if _identity_of(folder) != levels[-1].identity:
                    raise SandboxError(f"{place.shown} was moved while it was being deleted. List it again", STALE)
                leave(folder, done.name)
        finally:
            os.close(folder)
        leave(place.fd, place.name)


def _visited(place: Place, above: list[_Level], name: str, folder: int, visit: Visit) -> _Level:
    """Refuse protected entries and visit the rest; return the level with its folders, the first one last."""
    shown = "/".join([place.shown, *(escape_path(level) for level in [*(one.name for one in above), name][1:])])
    _require_deletable(folder, os.fstat(place.fd).st_dev, shown)
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        place.root.root.protection.check(entry.name, f"{shown}/{escape_path(entry.name)}", is_write=True)
    visit(folder, shown, entries)
    folders = [entry.name for entry in reversed(entries) if entry.is_dir(follow_symlinks=False)]
    return _Level(name, _identity_of(folder), folders)


def _step(folder: int, name: str) -> int:
    opened = os.open(name, ENTER_FOLDER, dir_fd=folder)
    os.close(folder)
    return opened


def _identity_of(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _require_deletable(folder: int, device: int, shown: str) -> None:
    if os.fstat(folder).st_dev != device:
        raise SandboxError(f"{shown} is a mounted file system; it is not deleted", PERMISSION_DENIED)
    if not os.access(".", os.R_OK | os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True):
        what = f"cannot be deleted (mode {stat.S_IMODE(os.fstat(folder).st_mode):04o})"
        raise SandboxError(f"Permission denied: the content of {shown} {what}", PERMISSION_DENIED)
