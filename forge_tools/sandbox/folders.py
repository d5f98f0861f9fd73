"""Folders below an open handle: listed, entered and read without ever following a link."""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from forge_tools.sandbox.sightings import Look, Sighting

_INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO must not wait for its writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_BYTES = 64 << 20


@dataclass(slots=True)
class Entries:
    """The names in a folder by what they are; `others` are sockets, FIFOs and devices."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


class Folder:
    """An open folder. Close it, or use it as a context manager.

    Names are single components; undecodable bytes are surrogate escapes. Every method raises OSError as the kernel says.
    """

    __slots__ = ("_fd",)

    def __init__(self, fd: int, name: str = ".") -> None:
        """Open a folder in the one that `fd` has open, or that one itself by a handle of its own."""
        self._fd = os.open(name, _INTO, dir_fd=fd)

    def enter(self, name: str) -> "Folder":
        """Open a folder in this one; a link is refused, whatever it leads to."""
        return Folder(self._fd, name)

    def sight(self, look: Look) -> Sighting:
        """Note what the folder is now."""
        return look.at(self._fd)

    def entries(self) -> Entries:
        """List the folder in no order."""
        found = Entries()
        file, folder = found.files.append, found.folders.append
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    file(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    folder(entry.name)
                else:
                    (found.links if entry.is_symlink() else found.others).append(entry.name)
        return found

    def read(self, name: str) -> bytes:
        """Read a regular file of at most 64 MiB.

        Raises:
            OSError: it is something else, or larger (EFBIG).
        """
        fd = os.open(name, _READ, dir_fd=self._fd)
        with os.fdopen(fd, "rb") as file:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise OSError(f"{name} is not a regular file")
            if facts.st_size > _MAX_BYTES:
                raise OSError(f"{name} is larger than {_MAX_BYTES:,} bytes")
            return file.read(_MAX_BYTES)

    def stat(self, name: str) -> os.stat_result:
        """Return the facts of an entry, of a link itself."""
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # opening it failed
            self.close()
