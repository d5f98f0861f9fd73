"""Opens that cannot leave a folder, whatever symlinks and races lie on the way: by the kernel, else step by step."""

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from functools import cache, lru_cache

RootParts = Callable[[str], list[str] | None]
"""Turns an absolute path into parts below the root, or None where it is outside."""

_SYS_OPENAT2 = 437
_RESOLVE_NO_XDEV = 0x01
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE_CACHED = 0x20
_MAX_LINKS = 40
_MAX_RACES = 64
_STEP = os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)


def open_beneath(root: int, path: str, flags: int, root_parts: RootParts) -> int:
    """Open the relative `path` below the folder handle `root` and return its descriptor.

    Symlinks that stay inside are followed, absolute ones too.

    Raises:
        OSError: as the kernel says; EXDEV where the path would leave the root.
    """
    flags |= os.O_CLOEXEC
    if kernel_confines():
        try:
            return _openat2(root, path, flags)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
    # EXDEV also means an absolute symlink, which may still lead back inside: only a walk can tell.
    return _Walk(root, root_parts).open(path, flags)


def open_straight(root: int, path: str, flags: int) -> int | None:
    """Open as `open_beneath` does where no link is on the way: then `path` is where the file is. None where one may be.

    Raises:
        OSError: as the kernel says.
    """
    if ".." in path or not kernel_confines():
        return None
    try:
        return _openat2(root, path, flags | os.O_CLOEXEC, _RESOLVE_NO_SYMLINKS)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return None


def open_cached(root: int, path: str, flags: int) -> int | None:
    """Open as `open_straight` does on the root's own file system, if the kernel has every name on the way in memory.

    None where it has not, where it is too old to tell (before Linux 5.12), or where the open fails.
    """
    if ".." in path or not kernel_confines():
        return None
    try:
        return _openat2(root, path, flags | os.O_CLOEXEC, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_XDEV | _RESOLVE_CACHED)
    except OSError:
        return None


@cache
def kernel_confines() -> bool:
    """Whether this kernel has openat2 and lets us call it (Linux 5.6; some seccomp filters refuse it)."""
    if not sys.platform.startswith("linux"):
        return False
    here = os.open("/", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.close(_openat2(here, ".", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        os.close(here)
    return True


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW_BYTES = ctypes.sizeof(_OpenHow)


@cache
def _syscall() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    function.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
    return function


@lru_cache(maxsize=32)
def _how(flags: int, resolve: int) -> tuple[int, _OpenHow]:
    """Return the address of what openat2 is told, with what lies there; a handful of them serves every open."""
    how = _OpenHow(flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | resolve)
    return ctypes.addressof(how), how


def _openat2(root: int, path: str, flags: int, resolve: int = 0) -> int:
    encoded, (how, _), call = os.fsencode(path), _how(flags, resolve), _syscall()
    for _ in range(_MAX_RACES):
        fd = call(_SYS_OPENAT2, root, encoded, how, _HOW_BYTES)
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        # EAGAIN: something was renamed while the kernel resolved a `..`, so it could not vouch for the answer;
        # or it would have had to leave its memory.
        if code not in (errno.EAGAIN, errno.EINTR) or resolve & _RESOLVE_CACHED:
            break
    raise OSError(code, os.strerror(code))


class _Walk:
    """Goes one component at a time, each relative to an open handle and never through a symlink it did not read itself."""

    def __init__(self, root: int, root_parts: RootParts) -> None:
        self._root = root
        self._root_parts = root_parts
        self._handles: list[int] = []
        self._links = 0

    def open(self, path: str, flags: int) -> int:
        todo = _parts(path)
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
        return self._handles[-1] if self._handles else self._root

    def _up(self) -> None:
        if not self._handles:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        os.close(self._handles.pop())

    def _step(self, name: str, flags: int, todo: list[str]) -> int | None:
        """Open one component, or put the target of a symlink in front of what is left to do."""
        try:
            return os.open(name, flags, dir_fd=self._here)
        except OSError as error:
            target = self._link(name) if error.errno in (errno.ELOOP, errno.ENOTDIR) else None
            if target is None:
                raise
            todo[:0] = self._target(target)
            return None

    def _link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self._here)
        except OSError:
            return None

    def _target(self, target: str) -> list[str]:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not target.startswith("/"):
            return _parts(target)
        parts = self._root_parts(target)
        if parts is None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        while self._handles:
            self._up()
        return parts


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
