"""A place: one name in an open folder of the workspace, where a file is, or will be, written or deleted."""

import errno
import fcntl
import os
import posixpath
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.confinement import ENTER_FOLDER, MAX_LINKS, OPEN_FILE, OPEN_FOLDER, Descriptor, OpenRoot
from forge_tools.sandbox.paths.refusals import (
    LOCK_TIMEOUT,
    NOT_A_DIRECTORY,
    NOT_A_FILE,
    NOT_FOUND,
    PERMISSION_DENIED,
    PROTECTED,
    STALE,
    escape_path,
    not_a_file,
    parts_of,
    refusal,
    refusing,
    similar_names,
)

Check = Callable[[], None]
"""Called between steps of blocking work; raises when nobody waits for it any more."""

PATIENCE = 30.0
"""Seconds; a writer holds a folder for about a millisecond."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.01
_NO_LOCKS = frozenset({errno.EBADF, errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL})
_MAX_SIBLINGS = 2000


class Place(Descriptor):
    """`fd` is the open folder; `name` in it is not a link if links were followed.

    `missing` are the folders on the path that do not exist yet; then `fd` is the last one that does.
    """

    def __init__(self, root: OpenRoot, folder: int, missing: list[str], name: str, shown: str) -> None:
        self.root = root
        self.fd = folder
        self.missing = missing
        self.name = name
        self.shown = shown
        self._made: list[tuple[int, str]] = []

    def status(self) -> os.stat_result | None:
        """Return what is there now, a link itself rather than its target; None if nothing is."""
        with refusing(self.shown), suppress(FileNotFoundError):
            return None if self.missing else os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)
        return None

    def open(self) -> Descriptor | None:
        """Open the regular file there for reading; None if there is nothing."""
        file = None
        with refusing(self.shown), suppress(FileNotFoundError):
            if not self.missing:
                file = Descriptor(os.open(self.name, OPEN_FILE | os.O_NOFOLLOW, dir_fd=self.fd))
        if file is not None and not stat.S_ISREG(mode := os.fstat(file.fd).st_mode):
            file.close()
            raise not_a_file(self.shown, mode)
        return file

    def require_writable(self, status: os.stat_result | None) -> None:
        """Refuse, before any change, what the file system would refuse: a dry run must know it too."""
        self.require_writable_folder(status)
        if status is not None and not os.access(self.name, os.W_OK, dir_fd=self.fd, effective_ids=True):
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            what = f"Permission denied: {self.shown} is read-only (mode {mode}). Change its mode first if you may"
            raise SandboxError(what, PERMISSION_DENIED)

    def require_writable_folder(self, status: os.stat_result | None = None) -> None:
        """Refuse if no name can be added to the folder or removed from it, or not this one."""
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=self.fd, effective_ids=True):
            what = f"Permission denied: the folder of {self.shown} cannot be written"
            raise SandboxError(what, PERMISSION_DENIED)
        if status is not None:
            require_own(self.fd, status, self.shown)

    def make_folders(self) -> None:
        """Create the missing folders, each in the open one above it; a link put there meanwhile is refused."""
        try:
            while self.missing:
                name = self.missing[0]
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self.fd)
                    self._made.append((os.dup(self.fd), name))
                below = os.open(name, ENTER_FOLDER, dir_fd=self.fd)
                os.close(self.fd)
                self.fd = below
                self.missing = self.missing[1:]
        except OSError as error:
            self.unmake_folders()
            raise refusal(error, self.shown, "make the folders of") from error

    def unmake_folders(self) -> None:
        """Remove the folders that were created here, unless something has been put into them."""
        for above, name in reversed(self._made):
            with suppress(OSError):
                os.rmdir(name, dir_fd=above)

    @contextmanager
    def locked(self, check: Check) -> Iterator[None]:
        """Exclude every other writer on this host from the folder, including threads of this process, while files are
        replaced.

        `check` is called while waiting, and may raise. The kernel drops the lock with its holder. If the file system
        has no locks (some network ones), concurrent writes are detected by the changes they make.
        """
        pause, deadline = _FIRST_PAUSE, time.monotonic() + PATIENCE
        while not _is_taken(self.fd):
            if time.monotonic() > deadline:
                what = f"Another writer has held the folder of {self.shown} for {PATIENCE:g} s. Try again later"
                raise SandboxError(what, LOCK_TIMEOUT)
            check()
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        try:
            yield
        finally:
            with suppress(OSError):  # there was no lock to take
                fcntl.flock(self.fd, fcntl.LOCK_UN)

    def require_unchanged(self, seen: os.stat_result | None) -> None:
        """Refuse to go on if somebody who takes no locks has written since."""
        now = self.status()
        if _identity(now) != _identity(seen):
            raise SandboxError(f"{self.shown} was changed by someone else at the same moment. Read it again", STALE)

    def not_found(self) -> SandboxError:
        """Build the error for a missing file, with similar names."""
        refused = SandboxError(f"File not found: {self.shown}", NOT_FOUND)
        return refused if self.missing else with_similar(refused, self.fd, self.name, self.shown)

    def close(self) -> None:
        super().close()
        while self._made:
            os.close(self._made.pop()[0])


def find_place(root: OpenRoot, inside: str, shown: str, *, follow: bool) -> Place:
    """Find the folder and the name for a path below `root`; errors are those of `OpenRoot.open`, too."""
    for _ in range(MAX_LINKS):
        *above, name = parts_of(inside) or [""]
        if name in ("", "..") or (follow and inside.endswith("/")):
            raise _no_name(root, inside, shown, follow=follow)
        folder, missing = _open_folder(root, above, shown)
        try:
            target = os.readlink(name, dir_fd=folder) if follow and not missing else None
        except OSError:  # no link, or nothing at all
            target = None
        if target is None:
            return Place(root, folder, missing, name, shown)
        os.close(folder)
        inside = root.below_of_target(target) if target.startswith("/") else "/".join([*above, target])
    raise SandboxError(f"{shown} is a symbolic link in a loop and cannot be followed", NOT_A_FILE)


def with_similar(refused: SandboxError, folder: int, name: str, shown: str) -> SandboxError:
    """Add to a refusal the names in that open folder that resemble the missing one."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, _MAX_SIBLINGS)]
    above = posixpath.dirname(shown)
    similar = [posixpath.join(above, escape_path(other)) for other in similar_names(name, names)]
    return SandboxError(f"{refused.message}. Similar: {', '.join(similar)}", NOT_FOUND) if similar else refused


def require_own(folder: int, status: os.stat_result, shown: str) -> None:
    """Refuse the files of others in a folder with the sticky bit, where only owners may delete."""
    above, me = os.fstat(folder), os.geteuid()
    if above.st_mode & stat.S_ISVTX and me not in (0, above.st_uid, status.st_uid):
        what = f"Permission denied: {shown} belongs to somebody else, in a folder where only owners may replace or delete their files"
        raise SandboxError(what, PERMISSION_DENIED)


def _is_taken(folder: int) -> bool:
    """Take the lock if it is free; without lock support there is nothing to wait for."""
    try:
        # POSIX locks (lockf) belong to a process: they would not exclude its other threads.
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            return False
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _no_name(root: OpenRoot, inside: str, shown: str, *, follow: bool) -> SandboxError:
    """Build the refusal of a folder's path; raises if it lies outside."""
    with suppress(FileNotFoundError):
        os.close(root.open(inside, OPEN_FOLDER))
    if follow:
        return not_a_file(shown, stat.S_IFDIR)
    what = f"{shown} is the workspace itself, or named by `..`. Pass the name of something inside it"
    return SandboxError(what, PROTECTED)


def _open_folder(root: OpenRoot, parts: list[str], shown: str) -> tuple[int, list[str]]:
    """Open the deepest existing folder of a path; return it and the missing names below it."""
    cut = len(parts)
    while True:
        try:
            folder = root.open("/".join(parts[:cut]) or ".", OPEN_FOLDER)
            break
        except FileNotFoundError:
            if not cut:
                raise
            cut -= 1
    if missing := parts[cut:]:
        _refuse_dead_end(folder, missing, shown)
    return folder, missing


def _refuse_dead_end(folder: int, missing: list[str], shown: str) -> None:
    """Refuse folders that cannot be created: through a link to nothing, or back up from a missing folder."""
    is_link = False
    with suppress(OSError):
        # If it is not a link, another writer has just created it: that is as good as if we had.
        is_link = stat.S_ISLNK(os.stat(missing[0], dir_fd=folder, follow_symlinks=False).st_mode)
    if is_link or ".." in missing:
        os.close(folder)
        if is_link:
            raise SandboxError(f"{shown} goes through a broken symbolic link", NOT_A_DIRECTORY)
        raise SandboxError(f"File not found: {shown}", NOT_FOUND)


def _identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    if status is None:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
