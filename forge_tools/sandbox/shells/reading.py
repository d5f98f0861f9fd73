"""The output of a shell as its supervisor keeps it, read by positions in the whole stream."""

import os
import stat
from typing import NamedTuple

from forge_tools.sandbox.shells.layout import READ, SEGMENT


class Piece(NamedTuple):
    """Bytes that follow one another, and where in the stream they begin."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class Output:
    """The files of one shell's output in its open folder. Many may read while the supervisor writes."""

    def __init__(self, folder: int) -> None:
        self._folder = folder

    @property
    def size(self) -> int:
        """How many bytes were written, kept or not, as far as the files tell."""
        segments = self._segments()
        return segments[-1][0] + self._status(segments[-1][1])[0] if segments else 0

    @property
    def changed_at(self) -> float | None:
        """When something was last written, in seconds since the epoch; None where nothing was."""
        segments = self._segments()
        return self._status(segments[-1][1])[1] if segments else None

    def read(self, start: int, limit: int) -> list[Piece]:
        """Return what is kept from `start` on, `limit` bytes at most; between two pieces something is missing."""
        pieces: list[Piece] = []
        segments = self._segments()
        for index, (begin, name) in enumerate(segments):
            if index + 1 < len(segments) and segments[index + 1][0] <= start:
                continue
            data = self._read(name, max(0, start - begin), limit)
            if not data:
                continue
            first = max(start, begin)
            if pieces and pieces[-1].end == first:
                pieces[-1] = Piece(pieces[-1].start, pieces[-1].data + data)
            else:
                pieces.append(Piece(first, data))
            limit -= len(data)
            if limit <= 0:
                break
        return pieces

    def _segments(self) -> list[tuple[int, str]]:
        """List (first position, name). A name says where it begins, so a number is all that may stand there."""
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(SEGMENT)]  # noqa: PTH208  of a handle
        except OSError:
            return []
        numbers = ((name.removesuffix(SEGMENT), name) for name in names)
        return sorted((int(number), name) for number, name in numbers if number.isascii() and number.isdigit())

    def _status(self, name: str) -> tuple[int, float]:
        try:
            status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return 0, 0.0
        return (status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else (0, 0.0)

    def _read(self, name: str, offset: int, limit: int) -> bytes:
        """Read a file that may be gone by now, or be something that somebody else put there: that holds nothing."""
        try:
            fd = os.open(name, READ, dir_fd=self._folder)
        except OSError:
            return b""
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return b""
            return os.pread(fd, limit, offset)
        except OSError:
            return b""
        finally:
            os.close(fd)
