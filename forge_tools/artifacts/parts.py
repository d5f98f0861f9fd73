"""The bytes of an artifact in parts, compressed separately so that a page reads only those it needs; and as files."""

import errno
import os
import secrets
import stat
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple

from forge_tools.model.artifacts import TEXT, TEXTS

PART_BYTES = 1 << 20
"""Bytes of an artifact in one part, before it is compressed."""

MAX_PACKED_BYTES = PART_BYTES + 4096
"""Incompressible data grow by a few bytes."""

_LEVEL = 1  # a third of the time of the default for a tenth more bytes
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINK_FREE = os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def count_parts(size: int) -> int:
    return -(-size // PART_BYTES)


class PackedPart(NamedTuple):
    """A compressed part, and how many lines end in it; None if they were not counted, as in what is no text."""

    number: int
    data: bytes
    breaks: int | None = None

    @classmethod
    def of(cls, number: int, chunk: bytes, media_type: str) -> "PackedPart":
        breaks = chunk.count(b"\n") if media_type.startswith(TEXTS) else None
        return cls(number, pack(chunk, media_type), breaks)


def pack(data: bytes, media_type: str = TEXT) -> bytes:
    """Compress one part, unless its type is already compressed, such as images."""
    return zlib.compress(data, _LEVEL if media_type.startswith(TEXTS) else 0)


def unpack(data: bytes, number: int, size: int) -> bytes:
    """Return the content of that part of an artifact of `size` bytes, verified by its checksum.

    Its length must be exactly that of the part, so even a forged part cannot exceed the limit.

    Raises:
        ValueError: it is damaged.
    """
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(data, PART_BYTES)
        more = unpacking.decompress(unpacking.unconsumed_tail, 1)
    except zlib.error as error:
        raise ValueError(f"a part is damaged: {error}") from error
    if more or unpacking.unused_data or not unpacking.eof:
        raise ValueError("a part is damaged: it does not end where it should")
    if len(found) != min(PART_BYTES, size - number * PART_BYTES):
        raise ValueError(f"part {number} is damaged: it holds {len(found):,} bytes")
    return found


class Measured(NamedTuple):
    """A whole file: its id as an artifact, its size, and its first bytes."""

    id: str
    size: int
    head: bytes


def measured(file: BinaryIO) -> Measured:
    """Read a file to its end, one part in memory at a time, and rewind it."""
    file.seek(0)
    digest, size, head = blake2b(digest_size=16), 0, b""
    while data := file.read(PART_BYTES):
        head = head or data
        digest.update(data)
        size += len(data)
    file.seek(0)
    return Measured(digest.hexdigest(), size, head)


class PartFiles:
    """Packed parts as files under the names of their artifacts, `6b/6b1f.../0`, in a folder accessible only to this user.

    A file is complete or absent, and no link below the folder is followed. Every method may raise OSError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.probe()

    def probe(self) -> None:
        with self._root() as root:
            os.unlink(_written(root, b""), dir_fd=root)

    def write(self, id: str, number: int, data: bytes) -> None:
        """Store a part, replacing any earlier one."""
        with self._open(id, make=True) as folder:
            os.rename(_written(folder, data), str(number), src_dir_fd=folder, dst_dir_fd=folder)

    def read(self, id: str, number: int) -> bytes:
        """Return a part; if the file is not a part, only enough to show that.

        Raises:
            FileNotFoundError: it is not there.
        """
        with self._open(id) as folder:
            fd = os.open(str(number), os.O_RDONLY | os.O_NONBLOCK | _LINK_FREE, dir_fd=folder)
            with os.fdopen(fd, "rb") as file:
                return file.read(MAX_PACKED_BYTES + 1)

    def are_there(self, id: str, numbers: Collection[int]) -> bool:
        """Whether all of these parts exist, and will survive a power cut."""
        with suppress(FileNotFoundError), self._open(id) as folder:
            there = _names(folder)
            os.fsync(folder)
            return there.issuperset(map(str, numbers))
        return not numbers

    def remove(self, id: str) -> None:
        """Delete all parts of an artifact, including partly written ones."""
        with suppress(FileNotFoundError), self._root() as root, _folder(root, id[:2]) as group:
            with _folder(group, id) as folder:
                for name in _names(folder):
                    os.unlink(name, dir_fd=folder)
            os.rmdir(id, dir_fd=group)

    def touch(self, id: str) -> None:
        """Record that an artifact was stored just now."""
        with self._open(id, make=True) as folder:
            os.utime(folder)

    def touched(self, id: str) -> float:
        """Return when an artifact was last stored.

        Raises:
            FileNotFoundError: nothing of it is there.
        """
        with self._open(id) as folder:
            return os.fstat(folder).st_mtime

    def ids(self) -> Iterator[str]:
        """Yield the artifacts that have any file."""
        with self._root() as root:
            for name in _names(root):
                with suppress(NotADirectoryError), _folder(root, name) as group:
                    yield from _names(group)

    @contextmanager
    def _root(self) -> Iterator[int]:
        fd = os.open(self.folder, _FOLDER)
        try:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid():
                raise PermissionError(
                    errno.EPERM, f"it belongs to user {status.st_uid}, but this is user {os.geteuid()}"
                )
            if status.st_mode & _OTHERS:
                raise PermissionError(errno.EPERM, f"it is open to others. Run chmod 700 {self.folder}")
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _open(self, id: str, *, make: bool = False) -> Iterator[int]:
        with (
            self._root() as root,
            _folder(root, id[:2], make=make) as group,
            _folder(group, id, make=make) as folder,
        ):
            yield folder


@contextmanager
def _folder(parent: int, name: str, *, make: bool = False) -> Iterator[int]:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    fd = os.open(name, _FOLDER | _LINK_FREE, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def _names(folder: int) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries}


def _written(folder: int, data: bytes) -> str:
    """Write a file under a name that no part has, and return that name."""
    name = f".{secrets.token_hex(8)}"
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _LINK_FREE, 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    return name
