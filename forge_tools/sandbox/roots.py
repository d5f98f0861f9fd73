"""The roots of a workspace: folders held open by handle, each to be read and written, or only to be read."""

import fcntl
import os
import posixpath
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from forge_tools.errors import SandboxError
from forge_tools.sandbox.confine import open_beneath, open_cached, open_straight
from forge_tools.sandbox.names import check_path, escape_path, parts_of
from forge_tools.sandbox.nowait import is_offered
from forge_tools.sandbox.protection import Protection
from forge_tools.sandbox.refusals import NOT_A_DIRECTORY, OUTSIDE, READ_ONLY

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_USUAL = Protection()  # one for all, as it keeps the expressions that it makes


@dataclass(frozen=True, slots=True)
class Root:
    """A folder that tools may touch, and what in it they may not."""

    path: Path
    is_read_only: bool = False
    protection: Protection = _USUAL


class OpenRoot:
    """A root while a call uses it. Nothing opened through it lies outside, whatever happens meanwhile.

    Raises:
        SandboxError: on construction, when the folder cannot be opened.
    """

    def __init__(self, root: Root) -> None:
        self.fd = -1
        self.inner: Sequence[tuple[list[str], Root]] = ()
        check_path(str(root.path))
        self.root = root
        self.path = posixpath.abspath(root.path)
        try:
            self.fd = os.open(self.path, OPEN_FOLDER)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            what = f"Workspace {escape_path(self.path)} cannot be opened: {reason}. Check working_dir"
            raise SandboxError(what, NOT_A_DIRECTORY) from error

    def open(self, inside: str, flags: int) -> int:
        """Open a path below the root and return its descriptor.

        Raises:
            OSError: as the kernel says; EXDEV where the path would leave the root.
        """
        return open_beneath(self.fd, inside, flags, self.parts)

    def open_to_read(self, inside: str, flags: int, shown: str) -> int:
        """Open a path below the root that may be read, and return its descriptor.

        Raises:
            OSError: as the kernel says; EXDEV where the path would leave the root.
            SandboxError: it is protected, or was moved out meanwhile.
        """
        straight = open_straight(self.fd, inside, flags)
        if straight is not None:
            return self._if_allowed(straight, inside, shown)
        fd = self.open(inside, flags)
        try:
            self.check(fd, shown)
        except SandboxError:
            os.close(fd)
            raise
        return fd

    def open_cached(self, inside: str, flags: int, shown: str) -> int | None:
        """Open as `open_to_read` does where that surely waits for nothing; None where it might, or fails.

        Raises:
            SandboxError: it is protected.
        """
        fd = open_cached(self.fd, inside, flags) if is_offered(os.fstat(self.fd).st_dev) else None
        return None if fd is None else self._if_allowed(fd, inside, shown)

    def parts(self, path: str) -> list[str] | None:
        """Turn an absolute path into the names below the root; None where it is outside."""
        parts = parts_of(path)
        for root in (self.path, self._real_path):
            above = parts_of(root)
            if parts[: len(above)] == above:
                return parts[len(above) :]
        return None

    def true_parts(self, fd: int) -> list[str] | None:
        """Ask the kernel where below the root an open file or folder is now, by whatever links it was reached."""
        path = true_path(fd)
        if path.startswith(self._prefix):  # as good as always, and every open asks
            return path[len(self._prefix) :].split("/")
        parts = self.parts(path)
        if parts is None and (here := true_path(self.fd)) != self._real_path:  # the root itself was moved
            above, parts = parts_of(here), parts_of(path)
            return parts[len(above) :] if parts[: len(above)] == above else None
        return parts

    def check(self, fd: int, shown: str, names: Sequence[str] = (), *, is_write: bool = False) -> str:
        """Refuse what is protected, and writes where only reading is allowed; return where it is below the root.

        The path checked is the one that `fd` really has, followed by `names`. In another root inside this one, that one's
        rules count, as they do for a path that begins there.

        Raises:
            SandboxError: PATH_PROTECTED, READ_ONLY_WORKSPACE, or that it was moved out meanwhile.
        """
        parts = self.true_parts(fd)
        if parts is None:
            raise SandboxError(f"Path is outside the workspace: {shown}", OUTSIDE)
        parts = [*parts, *names]
        self._require_allowed(parts, shown, is_write=is_write)
        return "/".join(parts) or "."

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _if_allowed(self, fd: int, inside: str, shown: str) -> int:
        """Keep open what has no link on its way, so that there is no need to ask the kernel where it is."""
        try:
            self._require_allowed(parts_of(inside), shown, is_write=False)
        except SandboxError:
            os.close(fd)
            raise
        return fd

    def _require_allowed(self, parts: list[str], shown: str, *, is_write: bool) -> None:
        root, below = self._innermost(parts, shown, is_write=is_write) if self.inner else (self.root, parts)
        root.protection.check(below, shown, is_write=is_write)
        if is_write and root.is_read_only:
            raise SandboxError(f"{shown} is in a part of the workspace that is read-only. Write elsewhere", READ_ONLY)

    def _innermost(self, parts: list[str], shown: str, *, is_write: bool) -> tuple[Root, list[str]]:
        """The root whose rules count at `parts`, and the names below it; a folder around a read-only one is not written."""
        for above, root in self.inner:
            if parts[: len(above)] == above:
                return root, parts[len(above) :]
            if is_write and root.is_read_only and above[: len(parts)] == parts:
                what = f"{shown} contains {escape_path(str(root.path))}, which is read-only. Leave that folder as it is"
                raise SandboxError(what, READ_ONLY)
        return self.root, parts

    @cached_property
    def _prefix(self) -> str:
        return f"{self._real_path.rstrip('/')}/"

    @cached_property
    def _real_path(self) -> str:
        return os.path.realpath(self.path)


def nest(roots: Sequence[OpenRoot]) -> None:
    """Tell each root which others lie in it, however their paths are written: the deepest first."""
    if len(roots) < 2:
        return
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
