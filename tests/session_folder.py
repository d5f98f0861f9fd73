"""The folder of one run's servers: a private one, removed with the run or by the next one."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO

RUN_FOLDER, MEMORY_FOLDER = "FORGE_TESTS_FOLDER", "FORGE_TESTS_MEMORY"
"""The variables that name the two folders of a run: on a disk, and in memory if there is room."""

PREFIX = "forge-tests-"
MEMORY = Path("/dev/shm")
ROOM = 2 << 30


class SessionFolder:
    """A folder that others may pass through but not list; locked while its session lives.

    Sessions that were killed leave theirs behind: whoever comes next removes what is no longer locked.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or short_temporary_folder()
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = lock_folder(self.path)
        self.path.chmod(0o711)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def roomy_memory() -> Path | None:
    """Where files live in memory, if that has room for a run's servers and may hold their programs.

    A new database is some hundred files; on a disk most of a test's time went into them.
    """
    try:
        shown = os.statvfs(MEMORY)
    except OSError:
        return None
    has_room = shown.f_bavail * shown.f_frsize >= ROOM
    return MEMORY if has_room and not shown.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK) else None


def short_temporary_folder() -> Path:
    """The temporary folder, unless sockets in it would get too long a name or other users cannot pass through."""
    usual = Path(tempfile.gettempdir()).resolve()
    return usual if len(os.fsencode(usual)) <= 50 and (os.getuid() or is_open(usual)) else Path("/tmp").resolve()


def remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            # A session makes its folder, then locks it; one minute is far more than it needs between the two.
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < 60:
                continue
            lock = lock_folder(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                lock.close()


def lock_folder(folder: Path) -> IO[bytes] | None:
    """Lock the folder for the life of this process; None if somebody else has it."""
    lock = (folder / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def is_open(path: Path) -> bool:
    """Whether every user may enter `path` and all folders above it."""
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (path, *path.parents))
