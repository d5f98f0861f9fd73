"""Folders deleted with all that is in them, by open handles alone: no link is followed, however fast it is put there."""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.names import escape_path
from forge_tools.sandbox.paths.places import Check, Place, require_own
from forge_tools.sandbox.paths.refusals import PERMISSION_DENIED, STALE, refusal

_INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED = 20
_CHECK_EVERY = 1000

Entry = os.DirEntry[str]

Visit = Callable[[int, str, list[Entry]], None]
"""Called with an open folder, its path as people may see it, and what is in it, before its folders are visited."""

Leave = Callable[[int, str], None]
"""Called with an open folder and the name of a folder in it that is done."""


@dataclass(slots=True)
class Survey:
    """What a folder holds, links counted as files; `first` are some of its paths."""

    files: int = 0
    folders: int = 0
    bytes: int = 0
    first: list[str] = field(default_factory=list)


def survey(place: Place, check: Check) -> Survey:
    """Count what would be deleted with the folder at a place, and refuse what may not be.

    Raises:
        SandboxError: something in it is protected, belongs to another file system or cannot be deleted.
    """
    found = Survey()

    def visit(folder: int, shown: str, entries: list[Entry]) -> None:
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
    """Delete the folder at a place.

    What came into it after a survey is held to the same rules.

    Raises:
        SandboxError: something in it may not or cannot be deleted, or the folder was moved meanwhile; it says so where a part
            is gone.
    """
    removed = 0

    def visit(folder: int, _shown: str, entries: list[Entry]) -> None:
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
        files = f"{removed:,} file{'' if removed == 1 else 's'}"
        what = f"{error.message}. The rest stays; {files} of {place.shown.rstrip('/')} {'is' if removed == 1 else 'are'} deleted"
        raise SandboxError(what, error.code) from error


def remove_file(place: Place) -> None:
    """Delete what is at a place and is no folder; of a link, the link.

    Raises:
        SandboxError: the file system refuses.
    """
    try:
        os.unlink(place.name, dir_fd=place.fd)
    except OSError as error:
        raise refusal(error, place.shown, "delete") from error


@dataclass(slots=True)
class _Level:
    name: str
    identity: tuple[int, int]
    folders: list[str]


def _walk(place: Place, check: Check, visit: Visit, leave: Leave) -> None:
    """Go through a tree of any depth with two open handles; the way back up leads where it came from, or it ends."""
    levels: list[_Level] = []
    try:
        folder = os.open(place.name, _INTO, dir_fd=place.fd)
        try:
            levels.append(_Level(place.name, _identity(folder), []))
            levels[-1].folders = _visited(place, levels, folder, visit)
            while True:
                check()
                if levels[-1].folders:
                    name = levels[-1].folders.pop()
                    folder = _step(folder, name)
                    levels.append(_Level(name, _identity(folder), []))
                    levels[-1].folders = _visited(place, levels, folder, visit)
                    continue
                done = levels.pop()
                if not levels:
                    break
                folder = _step(folder, "..")
                if _identity(folder) != levels[-1].identity:
                    raise SandboxError(f"{place.shown} was moved while it was being deleted. List it again", STALE)
                leave(folder, done.name)
        finally:
            os.close(folder)
        leave(place.fd, place.name)
    except OSError as error:
        raise refusal(error, place.shown, "delete") from error


def _visited(place: Place, levels: list[_Level], folder: int, visit: Visit) -> list[str]:
    """Refuse what may not be deleted, visit the rest; return the names of the folders in it, the first one last."""
    shown = "/".join([place.shown, *(escape_path(level.name) for level in levels[1:])])
    _require_deletable(folder, os.fstat(place.fd).st_dev, shown)
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        place.root.root.protection.check([entry.name], f"{shown}/{escape_path(entry.name)}", is_write=True)
    visit(folder, shown, entries)
    return [entry.name for entry in reversed(entries) if entry.is_dir(follow_symlinks=False)]


def _step(folder: int, name: str) -> int:
    opened = os.open(name, _INTO, dir_fd=folder)
    os.close(folder)
    return opened


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _require_deletable(folder: int, device: int, shown: str) -> None:
    if os.fstat(folder).st_dev != device:
        raise SandboxError(f"{shown} is another file system, mounted there; it is not deleted", PERMISSION_DENIED)
    if not os.access(".", os.R_OK | os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True):
        mode = f"{stat.S_IMODE(os.fstat(folder).st_mode):04o}"
        raise SandboxError(f"Permission denied: what is in {shown} cannot be deleted (mode {mode})", PERMISSION_DENIED)
