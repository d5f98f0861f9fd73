"""Where a supervisor puts the output of its shell: files that follow one another, of which the oldest but one goes."""

import contextlib
import os

from forge_tools.sandbox.shells.layout import segment

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC
_SEGMENTS = 8


class Segments:
    """Keeps the head and the tail of a stream, `limit` bytes at most. `size` is what was written, kept or not.

    A disk that is full costs the bytes that find no room, never the shell: it would wait for its reader.
    """

    def __init__(self, folder: int, limit: int) -> None:
        self._folder = folder
        self._each = max(1, limit // _SEGMENTS)
        self._names: list[str] = []
        self._fd = -1
        self._room = 0
        self.size = 0

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                if self._room == 0:
                    self._next()
                count = os.write(self._fd, left[: self._room])
            except OSError:
                self._give_up()
                self.size += len(left)
                return
            self.size += count
            self._room -= count
            left = left[count:]

    def close(self) -> None:
        """Let go of the file; what is written later gets another one."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._room = -1, 0

    def _next(self) -> None:
        self.close()
        if len(self._names) == _SEGMENTS:  # first, for the next one may need the room
            self._remove(1)
        name = segment(self.size)
        self._fd = os.open(name, _NEW, 0o600, dir_fd=self._folder)
        self._room = self._each
        self._names.append(name)

    def _give_up(self) -> None:
        """What follows needs a file of its own. One in which nothing found room must not count, or it would cost another."""
        if self._fd >= 0 and self._room == self._each:
            self._remove(-1)
        self.close()

    def _remove(self, index: int) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._names.pop(index), dir_fd=self._folder)
