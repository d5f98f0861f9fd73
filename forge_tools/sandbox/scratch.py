"""A temporary folder that lives as long as its process, and the end of those whose processes were killed."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Make a folder for this process alone, and remove it at the end; before, those of this prefix that nobody has any more.

    A lock on the folder says that its process lives: the kernel drops it with the process, however that dies, and with the
    processes that it forked. None of those removes the folder.
    """
    remove_leftovers(Path(tempfile.gettempdir()), prefix)
    path, folder = _made(prefix)
    owner = os.getpid()
    try:
        yield path
    finally:
        if os.getpid() == owner:
            with suppress(OSError):
                _remove(path, folder)
        os.close(folder)


def remove_leftovers(parent: Path, prefix: str) -> None:
    """Remove this user's folders of that prefix on which nobody holds the lock. What cannot be removed stays."""
    with suppress(OSError):
        for path in sorted(parent.glob(f"{prefix}*")):
            with suppress(OSError):  # a link or a file, somebody else's, or gone by now
                folder = os.open(path, _INTO)
                try:
                    if _is_private(folder):
                        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        _remove(path, folder)
                finally:
                    os.close(folder)


def _made(prefix: str) -> tuple[Path, int]:
    """Somebody who starts at the same time may find the folder before it is locked, and remove it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError):
            folder = os.open(path, _INTO)
            with suppress(OSError):  # a file system without locks, on which nobody can take it for left behind
                fcntl.flock(folder, fcntl.LOCK_EX)
            if _is_at(path, folder):
                return path, folder
            os.close(folder)


def _is_private(folder: int) -> bool:
    """Whether it is as `mkdtemp` makes it for this user."""
    facts = os.fstat(folder)
    return facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) == 0o700


def _is_at(path: Path, folder: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(folder))
    except FileNotFoundError:
        return False


def _remove(path: Path, folder: int) -> None:
    """Empty the open folder, whatever is at its path by now; of that only an empty folder can go."""
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.name, ignore_errors=True, dir_fd=folder)
            else:
                os.unlink(entry.name, dir_fd=folder)
    path.rmdir()
