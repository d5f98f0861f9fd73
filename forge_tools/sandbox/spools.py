"""Temporary files and folders that leave no trace: bytes on their way into an artifact or out of one."""

import asyncio
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from forge_tools.artifacts.parts import write_at
from forge_tools.artifacts.reader import after_last_line, next_line
from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.confinement import ENTER_FOLDER, Descriptor
from forge_tools.sandbox.walls.commands import make_locked

CHUNK_BYTES = 1 << 20
TOO_LARGE = "ARTIFACT_TOO_LARGE"

_MARKER_ROOM = 128
_LINE_ROOM = 64 << 10  # how far a cut may move to fall between two lines

SCRATCH = "forge-scratch-"
"""How the folders of what runs behind walls begin, below that of temporary files."""

RECENT_BYTES = 256 << 20
"""How much a process keeps of recently read artifacts, in unnamed files."""

RECENT_FILES = 64
"""How many such files at most: a process has a limited number of handles."""

SinkT = TypeVar("SinkT", bound="Sink")


class UnnamedFile(Descriptor):
    """A file without a name. It is gone when closed, which happens by itself with the last reference.

    A thread may still use it when its starter is cancelled and closes it: its number must not be reused meanwhile.
    """

    def __init__(self) -> None:
        self._in_use = threading.Lock()
        with tempfile.TemporaryFile(buffering=0) as file:
            self.fd = os.dup(file.fileno())
        self.size = 0

    def close(self) -> None:
        with self._in_use:
            super().close()


class Spool(UnnamedFile):
    """Takes any amount of bytes. Beyond `limit` it keeps the first and the last half, in whole lines if possible."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._head = limit // 2
        self._ring = limit - self._head

    @property
    def holds(self) -> str | None:
        """Say how much of what was written is kept; None if all of it is."""
        if self.size <= self._head + self._ring:
            return None
        return f"first and last {self._head:,} bytes of {self.size:,}"

    def write(self, data: bytes) -> None:
        """Append; what falls out of the middle is overwritten in the file."""
        rest = memoryview(data)
        while rest:
            at, room = self._place(self.size)
            with self._in_use:
                written = os.pwrite(self.fd, rest[:room], at)
            self.size, rest = self.size + written, rest[written:]

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield what was kept, with a line in place of the rest; the spool is closed at the end."""
        try:
            head, tail = self._ends() if self.holds else (self.size, self.size)
            for start in range(0, head, CHUNK_BYTES):
                yield self._read(start, min(head, start + CHUNK_BYTES))
            if tail > head:
                limit = f"the limit for an artifact is {self._head + self._ring:,}"
                yield f"[... {tail - head:,} bytes left out: {limit} ...]\n".encode()
            for start in range(tail, self.size, CHUNK_BYTES):
                yield self._read(start, min(self.size, start + CHUNK_BYTES))
        finally:
            self.close()

    def _ends(self) -> tuple[int, int]:
        """Return where the head ends, and where the tail begins: later by the marker, so that the whole stays within the limit."""
        head, tail = max(0, self._head - _LINE_ROOM), self.size - self._ring + min(_MARKER_ROOM, self._ring)
        head += after_last_line(self._read(head, self._head))
        return head, tail + next_line(self._read(tail, min(self.size, tail + _LINE_ROOM)))

    def _read(self, start: int, end: int) -> bytes:
        """Read by positions in all that was written."""
        data = bytearray()
        while start < end:
            at, room = self._place(start)
            with self._in_use:
                part = os.pread(self.fd, min(end - start, room), at)
            if not part:  # another process of our user may have cut it off: do not wait for the rest
                raise OSError("a spooled output was cut off")
            data += part
            start += len(part)
        return bytes(data)

    def _place(self, position: int) -> tuple[int, int]:
        """Return where in the file a byte is, and how many follow it contiguously."""
        if position < self._head:
            return position, self._head - position
        turn = (position - self._head) % self._ring
        return self._head + turn, self._ring - turn


class Gathered(UnnamedFile):
    """All of some chunks in one file."""

    def add(self, chunk: bytes) -> None:
        with self._in_use:
            write_at(self.fd, chunk, self.size)
        self.size += len(chunk)

    def take(self, changed: float | None = None) -> int:
        """Transfer the descriptor to the caller, who closes it; `changed` becomes the file's modification time."""
        fd, self.fd = self.fd, -1
        os.lseek(fd, 0, os.SEEK_SET)
        if changed is not None:
            os.utime(fd, (changed, changed))
        return fd


class Sink(Protocol):
    size: int

    def add(self, chunk: bytes, /) -> None: ...


async def fill(sink: SinkT, chunks: AsyncIterator[bytes], limit: int) -> SinkT:
    """Add the chunks without blocking the event loop, at most `limit` bytes; return the sink."""
    try:
        async for chunk in chunks:
            if sink.size + len(chunk) > limit:
                raise SandboxError(f"The output is larger than {limit:,} bytes, the limit for an artifact", TOO_LARGE)
            await asyncio.to_thread(sink.add, chunk)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise SandboxError(f"The output cannot be stored on this host: {reason}") from error
    return sink


class Recent:
    """Recently read artifacts, kept open as unnamed files so that the next page need not fetch them again."""

    def __init__(self, max_bytes: int = RECENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._files: dict[str, int] = {}
        self._lock = threading.Lock()  # a descriptor closed by one thread is reused at the next open in another

    def open(self, id: str) -> int | None:
        """Return a new descriptor with its own position; None if the file is not here or cannot be shared."""
        with self._lock:
            fd = self._files.pop(id, None)
            if fd is None:
                return None
            self._files[id] = fd  # the last in order is evicted last
            with suppress(OSError):  # a duplicate would share its position with every other reader
                return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
            return None

    def add(self, id: str, fd: int) -> None:
        """Keep a duplicate of `fd`, evicting the least recently used."""
        with self._lock:
            if id in self._files or os.fstat(fd).st_size > self._max_bytes:
                return
            try:
                self._files[id] = os.dup(fd)
            except OSError:  # out of handles: the next reader fetches it again
                return
            while (
                len(self._files) > RECENT_FILES
                or sum(os.fstat(one).st_size for one in self._files.values()) > self._max_bytes
            ):
                os.close(self._files.pop(next(iter(self._files))))

    def __del__(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])


def new_scratch(prefix: str = SCRATCH) -> str:
    """Return where a folder may be made and locked, which `remove_leftovers` removes once it is abandoned."""
    return f"{tempfile.gettempdir()}/{prefix}{secrets.token_hex(6)}"


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Create a folder for this process only, and remove it at the end; first remove abandoned ones of this prefix.

    A lock on the folder shows that its process lives: the kernel drops it with the process, however that dies, and with
    the processes that it forked. None of those removes the folder.
    """
    remove_leftovers(Path(tempfile.gettempdir()), prefix)
    path, owner = Path(new_scratch(prefix)), os.getpid()
    folder = make_locked(str(path))
    try:
        yield path
    finally:
        if os.getpid() == owner:
            with suppress(OSError):
                _remove(path, folder)
        os.close(folder)


def remove_leftovers(parent: Path, prefix: str) -> None:
    """Remove this user's folders of that prefix on which nobody holds the lock. Those that cannot be removed stay."""
    with suppress(OSError):
        for path in sorted(parent.glob(f"{prefix}*")):
            # It may be a link or a file, somebody else's, or gone by now.
            with suppress(OSError), Descriptor(os.open(path, ENTER_FOLDER)) as folder:
                facts = os.fstat(folder.fd)  # is it ours, and closed to others, except to pass through?
                if facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) & ~0o011 == 0o700:
                    fcntl.flock(folder.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(path, folder.fd)


def _remove(path: Path, folder: int) -> None:
    """Empty the open folder, then remove what is at its path, which can only be an empty folder."""
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.name, ignore_errors=True, dir_fd=folder)
            else:
                os.unlink(entry.name, dir_fd=folder)
    path.rmdir()
