"""Opens that cannot leave a root, despite symlinks and races: by the kernel, else step by step."""

import errno
import fcntl
import os
import posixpath
import stat
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Self

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.refusals import NOT_A_DIRECTORY, READ_ONLY, Protection, escape_path, outside, parts_of
from forge_tools.sandbox.walls.privileges import checked

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
ENTER_FOLDER = OPEN_FOLDER | os.O_NOFOLLOW
OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""To read. O_NONBLOCK: opening a FIFO must not wait for its writer. O_NOCTTY: no terminal may become ours."""

MAX_LINKS = 40  # as many as Linux follows

_SYS_OPENAT2 = 437  # on every architecture; Python has no function for it
_RESOLVE_NO_XDEV = 0x01
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE_CACHED = 0x20
_MAX_RACES = 64
# O_PATH: a folder on the way need only be open to pass through, not to list.
_STEP = os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)

offered: dict[int, bool] = {}
"""By device that was met: whether it supports reads that never wait. One that does not (FUSE, NFS) may block even at the open."""


class Descriptor:
    """Something held open by `fd`: until `close`, the end of a `with`, or the loss of the last reference."""

    fd = -1

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # If a constructor failed, there is nothing to close, and `close` may miss attributes that it needs.
        if self.fd >= 0:
            self.close()


class Handle(Descriptor):
    """An open file or folder below `root`; `name` is its path as people may see it, relative to the working directory."""

    def __init__(self, fd: int, name: str, root: "OpenRoot") -> None:
        self.fd = fd
        self.name = name
        self.root = root
        self.stat = os.fstat(fd)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.stat.st_mode)

    def read_at_once(self, limit: int) -> bytes | None:
        """Return all bytes of a file, at most `limit`; None if there are more, or not all are in the kernel's memory."""
        size = self.stat.st_size
        if size > limit:
            return None
        buffer = bytearray(size + 1)  # one more, to detect growth
        try:
            del buffer[os.preadv(self.fd, [buffer], 0, _NOWAIT) :]
        except OSError:
            return None
        return bytes(buffer) if len(buffer) == size else None

    @property
    def link(self) -> str:
        """A path by which other processes of this user open this very file, while it is open here (Linux)."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"


_USUAL = Protection()  # shared, as it caches its compiled expressions


@dataclass(frozen=True, slots=True)
class Root:
    """A folder that tools may touch, and what is protected in it."""

    path: Path
    is_read_only: bool = False
    protection: Protection = _USUAL


class OpenRoot(Descriptor):
    """A root while a call uses it. Nothing opened through it lies outside, whatever changes meanwhile."""

    def __init__(self, root: Root) -> None:
        self.inner: Sequence[tuple[list[str], Root]] = ()
        self.root = root
        self.path = posixpath.abspath(root.path)
        try:
            self.fd = os.open(self.path, OPEN_FOLDER)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            what = f"Workspace {escape_path(self.path)} cannot be opened: {reason}. Check working_dir"
            raise SandboxError(what, NOT_A_DIRECTORY) from error

    def open(self, inside: str, flags: int) -> int:
        """Open a path below the root; return its descriptor. Symlinks that stay inside are followed, even absolute ones.

        Raises:
            OSError: as the kernel reports it; EXDEV if the path would leave the root.
        """
        flags |= os.O_CLOEXEC
        if kernel_confines():
            try:
                return _openat2(self.fd, inside, flags)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
        # EXDEV also means an absolute symlink, which may still lead back inside: only a walk can decide.
        return _Walk(self).open(inside, flags)

    def open_to_read(self, inside: str, shown: str) -> Handle:
        """Open a path below the root as `open` does, and refuse it if it is protected, or was moved out meanwhile."""
        straight = self._open_straight(inside)
        if straight is None:
            return self.admit(self.open(inside, OPEN_FILE), shown)
        return self.admit(straight, shown, inside)

    def open_cached(self, inside: str, shown: str) -> Handle | None:
        """Open like `open_to_read` if the kernel has every name on the path in memory; None if it might block, or fails."""
        if not offered.get(os.fstat(self.fd).st_dev):
            return None
        try:
            # Not beyond a mount point: what is mounted there may block, and only the root's device has been tried.
            fd = self._open_straight(inside, _RESOLVE_NO_XDEV | _RESOLVE_CACHED)
        except OSError:
            return None
        return None if fd is None else self.admit(fd, shown, inside)

    def admit(self, fd: int, shown: str, inside: str | None = None) -> Handle:
        """Return a handle for what was opened below the root, if it may be read. Pass `inside` if the path has no link."""
        handle = Handle(fd, shown, self)
        try:
            if inside is None:
                self.check(fd, shown)
            else:
                self._require_allowed(inside, shown, is_write=False)
        except SandboxError:
            handle.close()
            raise
        return handle

    def below(self, path: str) -> str | None:
        """Turn an absolute path into one below the root, "." for the root itself; None if it is outside."""
        found = _below(path, self.path)
        return _below(path, self._real_path) if found is None else found

    def below_of_target(self, target: str) -> str:
        """Do the same for the target of a link; one that leads outside is an OSError (EXDEV)."""
        if (below := self.below(target)) is None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return below

    def truly_below(self, fd: int) -> str | None:
        """Ask the kernel where below the root an open file or folder is now, whatever links led to it."""
        path = true_path(fd)
        if path.startswith(self._prefix):  # true almost always, and every open asks
            return path[len(self._prefix) :] or "."
        below = self.below(path)
        if below is None and (here := true_path(self.fd)) != self._real_path:  # the root itself was moved
            return _below(path, here)
        return below

    def check(self, fd: int, shown: str, names: Sequence[str] = (), *, is_write: bool = False) -> None:
        """Refuse protected paths, and writes if only reading is allowed.

        The path checked is the real one of `fd`, followed by `names`. In another root inside this one, that root's
        rules apply, as they do for a path that begins there.
        """
        below = self.truly_below(fd)
        if below is None:
            raise outside(shown)
        self._require_allowed("/".join([below, *names]), shown, is_write=is_write)

    def _open_straight(self, inside: str, resolve: int = 0) -> int | None:
        """Open a path without links, so that `inside` is the real place; None if it has one, or that is uncertain."""
        if ".." in inside or not kernel_confines():
            return None
        try:
            return _openat2(self.fd, inside, OPEN_FILE, _RESOLVE_NO_SYMLINKS | resolve)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        return None

    def _require_allowed(self, inside: str, shown: str, *, is_write: bool) -> None:
        root, below = self._innermost(inside, shown, is_write=is_write) if self.inner else (self.root, inside)
        root.protection.check(below, shown, is_write=is_write)
        if is_write and root.is_read_only:
            raise SandboxError(f"{shown} is in a read-only part of the workspace. Write elsewhere", READ_ONLY)

    def _innermost(self, inside: str, shown: str, *, is_write: bool) -> tuple[Root, str]:
        """Return the root whose rules apply, and the path below it. A folder around a read-only root is not writable."""
        parts = parts_of(inside)
        for above, root in self.inner:
            if parts[: len(above)] == above:
                return root, "/".join(parts[len(above) :])
            if is_write and root.is_read_only and above[: len(parts)] == parts:
                inner = escape_path(str(root.path))
                what = f"{shown} contains {inner}, which is read-only. That folder cannot be changed"
                raise SandboxError(what, READ_ONLY)
        return self.root, inside

    @cached_property
    def _prefix(self) -> str:
        return f"{self._real_path.rstrip('/')}/"

    @cached_property
    def _real_path(self) -> str:
        return os.path.realpath(self.path)


def nest(roots: Sequence[OpenRoot]) -> None:
    """Tell each root which others lie inside it, the deepest first, regardless of how their paths are written."""
    places = [(true_path(root.fd), root.root) for root in roots]
    for outer, (place, _) in zip(roots, places, strict=True):
        above = f"{place.rstrip('/')}/"
        inside = [(path.removeprefix(above).split("/"), root) for path, root in places if path.startswith(above)]
        outer.inner = sorted(inside, key=lambda one: len(one[0]), reverse=True) if inside else ()


def true_path(fd: int) -> str:
    """Ask the kernel where an open handle is now."""
    if sys.platform == "darwin":
        return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  five times as fast, and every open asks


def meet(fd: int, device: int) -> None:
    """Find out, when blocking does no harm, whether the file system of an open file supports reads that never wait."""
    if device not in offered:
        try:
            offered[device] = bool(_NOWAIT) and os.preadv(fd, [bytearray(1)], 0, _NOWAIT) >= 0
        except OSError as error:
            offered[device] = error.errno == errno.EAGAIN  # it would block now, and reports that


@cache
def kernel_confines() -> bool:
    """Whether this kernel has openat2 and lets us call it (Linux 5.6; some seccomp filters refuse it)."""
    if not sys.platform.startswith("linux"):
        return False
    with Descriptor(os.open("/", os.O_PATH | os.O_CLOEXEC)) as here, suppress(OSError):  # which walls do not refuse
        os.close(_openat2(here.fd, ".", os.O_PATH | os.O_CLOEXEC))
        return True
    return False


def _below(path: str, folder: str) -> str | None:
    parts, above = parts_of(path), parts_of(folder)
    return "/".join(parts[len(above) :]) or "." if parts[: len(above)] == above else None


def _openat2(root: int, path: str, flags: int, resolve: int = 0) -> int:
    how = struct.pack("QQQ", flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | resolve)  # flags, mode, resolution
    races = 0
    while True:
        try:
            return checked("syscall", _SYS_OPENAT2, root, os.fsencode(path), how, len(how))
        except OSError as error:
            # EAGAIN: something was renamed while the kernel resolved a `..`, so it could not vouch for the answer;
            # or it would have had to go beyond its memory.
            races += 1
            if error.errno not in (errno.EAGAIN, errno.EINTR) or resolve & _RESOLVE_CACHED or races == _MAX_RACES:
                raise


class _Walk:
    """Goes component by component, relative to an open handle and never through a symlink it did not read itself."""

    def __init__(self, root: OpenRoot) -> None:
        self._root = root
        self._handles: list[int] = []
        self._links = 0

    def open(self, path: str, flags: int) -> int:
        todo = parts_of(path)
        try:
            while todo:
                name = todo.pop(0)
                if name == "..":
                    self._up()
                    continue
                fd = self._step(name, _STEP if todo else flags | os.O_NOFOLLOW, todo)
                if fd is not None and not todo:
                    return fd
                if fd is not None:
                    self._handles.append(fd)
            return os.open(".", flags, dir_fd=self._here)
        finally:
            for handle in self._handles:
                os.close(handle)

    @property
    def _here(self) -> int:
        return self._handles[-1] if self._handles else self._root.fd

    def _up(self) -> None:
        if not self._handles:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        os.close(self._handles.pop())

    def _step(self, name: str, flags: int, todo: list[str]) -> int | None:
        """Open one component, or put the target of a symlink in front of the remaining ones."""
        try:
            return os.open(name, flags, dir_fd=self._here)
        except OSError as error:
            # Of a symlink O_NOFOLLOW reports ELOOP, but with O_DIRECTORY ENOTDIR, as of a file.
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            try:
                target = os.readlink(name, dir_fd=self._here)
            except OSError:
                raise error from None
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith("/"):
            todo[:0] = parts_of(self._root.below_of_target(target))
            while self._handles:
                self._up()
        else:
            todo[:0] = parts_of(target)
        return None
