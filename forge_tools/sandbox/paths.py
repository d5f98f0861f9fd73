"""The workspace: one folder, held open by handle, out of which no path leads."""

import difflib
import fcntl
import os
import posixpath
import stat
import sys
import unicodedata
from contextvars import ContextVar
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.records import ExecutionContext
from forge_tools.sandbox.confine import open_beneath
from forge_tools.sandbox.refusals import NOT_A_DIRECTORY, NOT_A_FILE, NOT_FOUND, OUTSIDE, printable, refusal

ROOT: ContextVar[Path | None] = ContextVar("forge_tools_root", default=None)
"""The workspace root of the call being run; None: the context's `working_dir` is the root."""

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
_MAX_SIBLINGS = 2000
# O_NONBLOCK: opening a FIFO must not wait for its writer. O_NOCTTY: no terminal may become ours.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY


class Handle:
    """An open file or folder of the workspace. Close it, or use it as a context manager.

    `name` is the path as people may see it, relative to the working directory.
    """

    def __init__(self, fd: int, name: str) -> None:
        self.fd = fd
        self.name = name
        self.stat = os.fstat(fd)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Workspace:
    """A folder that every path is confined to. Relative paths start at `working_dir`, absolute ones must lie inside.

    Raises:
        SandboxError: from every method, with a sentence and a code for the caller of the tool.
    """

    def __init__(self, root: Path, working_dir: str = ".") -> None:
        self._fd = -1
        _check(str(root))
        self._root = posixpath.normpath(root.absolute())
        self._working_dir = ""
        try:
            self._fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _no_root(self._root, error) from error
        self._working_dir = self._start(working_dir)

    @classmethod
    def for_context(cls, context: ExecutionContext) -> Self:
        """Open the workspace of a call: `ROOT` where the executor has set it, else the context's working directory."""
        root = ROOT.get()
        _check(context.working_dir)
        if root is None:
            return cls(Path(context.working_dir))
        return cls(root, context.working_dir)

    def open(self, path: str) -> Handle:
        """Open a regular file or a folder for reading."""
        relative, shown = self._locate(path)
        try:
            handle = Handle(open_beneath(self._fd, relative, _READ, self._root_parts), shown)
        except OSError as error:
            raise self._with_similar(refusal(error, shown), relative, shown) from error
        if not handle.is_folder and not stat.S_ISREG(handle.stat.st_mode):
            handle.close()
            raise SandboxError(f"{shown} is not a regular file; only files and directories can be opened", NOT_A_FILE)
        return handle

    def open_file(self, path: str) -> Handle:
        """Open a regular file for reading."""
        handle = self.open(path)
        if handle.is_folder:
            handle.close()
            raise SandboxError(f"{handle.name} is a directory; pass the path of a file in it", NOT_A_FILE)
        return handle

    def open_folder(self, path: str = ".") -> Handle:
        """Open a folder, to list it or to start a process in it."""
        handle = self.open(path)
        if not handle.is_folder:
            handle.close()
            raise SandboxError(f"{handle.name} is a file; pass the path of a directory", NOT_A_DIRECTORY)
        return handle

    def open_root(self) -> Handle:
        """Open the root itself, whatever the working directory is."""
        return Handle(os.dup(self._fd), self.shown("."))

    def inside(self, handle: Handle) -> str:
        """Return where an open file or folder lies below the root: no link on the way, "." for the root itself."""
        parts = self._root_parts(_true_path(handle.fd))
        if parts is None:
            raise SandboxError(f"Path is outside the workspace: {handle.name}", OUTSIDE)
        return "/".join(parts) or "."

    def shown(self, inside: str) -> str:
        """Turn a path below the root into one that people see: relative to the working directory."""
        if not self._working_dir:
            return printable(inside)
        return printable(posixpath.relpath(inside, self._working_dir))

    def close(self) -> None:
        """Let go of the root; happens by itself with the last reference."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _start(self, working_dir: str) -> str:
        """Check the working directory and return it relative to the root, "" for the root itself."""
        try:
            relative, _ = self._locate(working_dir)
            if not _plain(relative):
                return ""
            self.open_folder(working_dir).close()
        except SandboxError as error:
            what = f"Working directory cannot be used: {error.message}. Pass one inside the workspace, or `.`"
            raise SandboxError(what, error.code) from error
        return relative

    def _locate(self, path: str) -> tuple[str, str]:
        """Return the path relative to the root, and as people may see it: relative to the working directory."""
        _check(path)
        if not path.startswith("/"):
            joined = f"{self._working_dir}/{path}" if self._working_dir else path
            # `a/..` is not always `.`: `a` may be a symlink, so such a path is shown as it was given.
            return joined, printable(path if ".." in path.split("/") else posixpath.normpath(path))
        parts = self._root_parts(path)
        if parts is None:
            raise SandboxError(f"Path is outside the workspace: {printable(path)}", OUTSIDE)
        relative = "/".join(parts) or "."
        return relative, self.shown(relative)

    def _root_parts(self, path: str) -> list[str] | None:
        parts = _plain(path)
        for root in (self._root, self._real_root):
            above = _plain(root)
            if parts[: len(above)] == above:
                return parts[len(above) :]
        return None

    @cached_property
    def _real_root(self) -> str:
        return os.path.realpath(self._root)

    def _with_similar(self, refused: SandboxError, relative: str, shown: str) -> SandboxError:
        """Add names like the missing one from the same folder; a look-up that itself stays in the workspace."""
        folder, _, name = relative.rpartition("/")
        if refused.code != NOT_FOUND or not name:
            return refused
        try:
            fd = open_beneath(self._fd, folder or ".", _READ | os.O_DIRECTORY, self._root_parts)
        except OSError:
            return refused
        with Handle(fd, folder), os.scandir(fd) as entries:
            names = [entry.name for entry in islice(entries, _MAX_SIBLINGS)]
        similar = [posixpath.join(posixpath.dirname(shown), printable(other)) for other in _similar(name, names)]
        return SandboxError(f"{refused.message}. Similar: {', '.join(similar)}", NOT_FOUND) if similar else refused


def _check(path: str) -> None:
    """Refuse what no file system could hold, before any system call."""
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise _invalid("Path holds characters that no file name can hold") from None
    if not encoded:
        raise _invalid("Path is empty. Pass a path relative to the working directory")
    if b"\0" in encoded:
        raise _invalid("Path holds a NUL character")
    if len(encoded) > MAX_PATH_BYTES:
        raise _invalid(f"Path is {len(encoded):,} bytes; the limit is {MAX_PATH_BYTES:,}")
    longest = max(len(part) for part in encoded.split(b"/"))
    if longest > MAX_NAME_BYTES:
        raise _invalid(f"Path has a name of {longest:,} bytes; the limit is {MAX_NAME_BYTES}")


def _invalid(message: str) -> SandboxError:
    return SandboxError(message, ErrorCode.VALIDATION_ERROR)


def _no_root(root: str, error: OSError) -> SandboxError:
    reason = os.strerror(error.errno or 0)
    return SandboxError(f"Workspace {printable(root)} cannot be opened: {reason}. Check working_dir", NOT_A_DIRECTORY)


def _true_path(fd: int) -> str:
    """Ask the kernel where an open handle is now."""
    if sys.platform == "darwin":
        return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def _plain(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _similar(name: str, names: list[str]) -> list[str]:
    """Names that differ by case or Unicode form first, then by spelling; at most three."""
    names = [other for other in names if other != name]
    same = [other for other in names if _folded(other) == _folded(name)]
    return list(dict.fromkeys(same + difflib.get_close_matches(name, names, n=3, cutoff=0.7)))[:3]


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
