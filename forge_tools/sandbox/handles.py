"""An open file or folder of the workspace."""

import os
import stat
from types import TracebackType
from typing import Self

from forge_tools.sandbox.nowait import read_at_once
from forge_tools.sandbox.roots import OpenRoot


class Handle:
    """Close it, or use it as a context manager.

    `name` is the path as people may see it, relative to the working directory; `root` what it was opened through.
    """

    def __init__(self, fd: int, name: str, root: OpenRoot) -> None:
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
        """Return all bytes of a file, at most `limit`; None where they are more, or the kernel has not all in memory."""
        size = self.stat.st_size
        return read_at_once(self.fd, size) if size <= limit else None

    @property
    def link(self) -> str:
        """A path by which other processes of this user open the very same file, while it is open here (Linux)."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

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
