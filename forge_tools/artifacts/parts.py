"""The bytes of an artifact in parts, packed separately so that a page reads only those it needs; and as files."""

import errno
import os
import secrets
import stat
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Self

from forge_tools.config import Settings
from forge_tools.model.artifacts import TEXT, TEXTS

PART_BYTES = 1 << 20
"""Bytes of an artifact in one part, before it is compressed."""

MAX_PACKED_BYTES = PART_BYTES + 4096
"""Incompressible data grow by a few bytes."""

DRAFT_SECONDS = 3600.0
"""A draft that nobody has written to for so long was left by a process that was killed."""

_PARTS_AT_ONCE = 8  # a thread cannot be cancelled, so it returns this often
_DRAFT = ".forge-draft-"
_PLAIN = b"\0"  # begins a part that is not compressed; zlib begins none with it
_HEADER = 5  # that byte, and a checksum

_LEVEL = 1  # a third of the time of the default for a tenth more bytes
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINK_FREE = os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def folder_of(settings: Settings) -> Path | None:
    """Return the folder for the bytes of artifacts: without a setting one beside an SQLite file; None: in rows."""
    scheme, _, file = settings.database.partition(":///")
    if settings.artifact_dir is None and scheme.startswith("sqlite"):
        return Path(f"{Path(file).resolve()}.artifacts")
    return settings.artifact_dir


def count_parts(size: int) -> int:
    return -(-size // PART_BYTES)


class PackedPart(NamedTuple):
    """A packed part, and how many lines end in it; None if they were not counted, as in what is no text."""

    number: int
    data: bytes
    breaks: int | None = None


def pack(data: bytes, media_type: str = TEXT) -> bytes:
    """Compress one part; if its type is already compressed, such as images, only add a checksum."""
    return b"".join(_packed(data, media_type))


def _packed(data: bytes, media_type: str) -> tuple[bytes, ...]:
    """Return what a packed part consists of: bytes that are not compressed need not be copied to be written."""
    if media_type.startswith(TEXTS):
        return (zlib.compress(data, _LEVEL),)
    return _PLAIN + zlib.crc32(data).to_bytes(4), data


def unpack(data: bytes, number: int, size: int, *, is_checked: bool = True) -> bytes:
    """Return the content of that part of an artifact of `size` bytes, verified by its checksum.

    Whoever compares the whole with its id may leave out the check. The length must be exactly that of the part, so
    even a forged part cannot exceed the limit.

    Raises:
        ValueError: it is damaged.
    """
    length = min(PART_BYTES, size - number * PART_BYTES)
    if data.startswith(_PLAIN):
        found, more = data[_HEADER : _HEADER + length], b""
        if is_checked and zlib.crc32(found).to_bytes(4) != data[1:_HEADER]:
            raise ValueError("a part is damaged: its checksum differs")
    else:
        unpacking = zlib.decompressobj()
        try:
            found = unpacking.decompress(data, PART_BYTES)
            more = unpacking.decompress(unpacking.unconsumed_tail, 1)
        except zlib.error as error:
            raise ValueError(f"a part is damaged: {error}") from error
        if more or not unpacking.eof:
            raise ValueError("a part is damaged: it does not end where it should")
    if len(found) != length:
        raise ValueError(f"part {number} is damaged: it holds {len(found):,} bytes")
    return found


def write_at(fd: int, data: bytes, at: int) -> None:
    """Write all of it, as one call may write less."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


class Draft:
    """Bytes on their way into an artifact: hashed, cut into parts and packed as they come, in a file.

    Nobody else uses the file before it is published; otherwise it goes when this is closed. A thread may still write to
    it when its starter is cancelled and closes it: its number must not be reused meanwhile.
    """

    _fd = -1

    def __init__(self, media_type: str, path: Path | None = None) -> None:
        """Make a file at `path`, or one without a name."""
        self._in_use = threading.Lock()
        self._media_type = media_type
        self.path = path
        self._digest = blake2b(digest_size=16)
        self._rest = bytearray()
        self._parts: list[tuple[int, int | None]] = []
        self.size = 0
        if path is None:
            with tempfile.TemporaryFile(buffering=0) as file:
                self._fd = os.dup(file.fileno())
        else:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _LINK_FREE, 0o600)

    def close(self) -> None:
        with self._in_use:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
                if self.path is not None:
                    with suppress(OSError):  # it is published, or the folder is gone
                        self.path.unlink()

    __del__ = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        return self._digest.hexdigest()

    @property
    def breaks(self) -> list[int | None]:
        """How many lines end in each part."""
        return [breaks for _, breaks in self._parts]

    def add(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        self.size += len(chunk)
        if len(chunk) == PART_BYTES and not self._rest:
            self._append(chunk)  # without a copy
            return
        self._rest += chunk
        while len(self._rest) >= PART_BYTES:
            self._append(bytes(self._rest[:PART_BYTES]))
            del self._rest[:PART_BYTES]

    def copy(self, fd: int, size: int) -> bool:
        """Add the next parts of a file, up to `size`; False if there are no more."""
        for _ in range(_PARTS_AT_ONCE):
            data = os.pread(fd, min(PART_BYTES, size - self.size), self.size)
            if not data:
                return False
            self.add(data)
        return True

    def end(self) -> None:
        """Write what is left, and make a file with a name survive a power cut."""
        if self._rest:
            self._append(bytes(self._rest))
            self._rest.clear()
        if self.path is not None:
            os.fsync(self._fd)

    def part(self, number: int) -> PackedPart:
        """Return one part, once there are no more to come."""
        length, breaks = self._parts[number]
        with self._in_use:
            return PackedPart(number, os.pread(self._fd, length, number * MAX_PACKED_BYTES), breaks)

    def _append(self, data: bytes) -> None:
        at, length = len(self._parts) * MAX_PACKED_BYTES, 0
        for piece in _packed(data, self._media_type):
            with self._in_use:
                write_at(self._fd, piece, at + length)
            length += len(piece)
        breaks = data.count(b"\n") if self._media_type.startswith(TEXTS) else None
        self._parts.append((length, breaks))


class ArtifactFiles:
    """Artifacts as files named by their ids, in a folder accessible only to this user.

    A file holds the packed parts of one artifact, one every `MAX_PACKED_BYTES`, with holes in between, and is whole or
    absent. No link in the folder is followed. Every method may raise OSError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.probe()

    def probe(self) -> None:
        with self.draft(TEXT) as draft:
            draft.end()

    def draft(self, media_type: str) -> Draft:
        """Begin a file that `publish` finishes."""
        with self._root():
            return Draft(media_type, self.folder / f"{_DRAFT}{secrets.token_hex(8)}")

    def publish(self, draft: Draft, id: str) -> bool:
        """Make a draft the file of that artifact, replacing any earlier one; return whether it is there. May be repeated."""
        with self._root() as root:
            if draft.path is not None:
                with suppress(FileNotFoundError):  # renamed before, by a transaction that is tried again
                    os.rename(draft.path.name, id, src_dir_fd=root, dst_dir_fd=root)
            os.fsync(root)
        return self.is_there(id)

    def read(self, id: str, number: int) -> bytes:
        """Return a packed part, with zeros behind it; if the file holds none there, only enough to show that.

        Raises:
            FileNotFoundError: the file is not there.
        """
        with self._root() as root:
            fd = os.open(id, os.O_RDONLY | os.O_NONBLOCK | _LINK_FREE, dir_fd=root)
        try:
            return os.pread(fd, MAX_PACKED_BYTES, number * MAX_PACKED_BYTES)
        finally:
            os.close(fd)

    def is_there(self, id: str) -> bool:
        with suppress(FileNotFoundError):
            return self.touched(id) > 0
        return False

    def remove(self, id: str) -> None:
        with suppress(FileNotFoundError), self._root() as root:
            os.unlink(id, dir_fd=root)

    def tidy(self) -> None:
        """Delete the drafts of processes that were killed, and nothing else, whatever folder this is."""
        with self._root() as root:
            for name in _names(root):
                with suppress(FileNotFoundError):  # it has just been published
                    if name.startswith(_DRAFT) and self.touched(name) < time.time() - DRAFT_SECONDS:
                        self.remove(name)

    def touch(self, id: str) -> None:
        """Record that an artifact was stored just now."""
        with self._root() as root:
            os.utime(id, dir_fd=root, follow_symlinks=False)

    def touched(self, id: str) -> float:
        """Return when an artifact was last stored.

        Raises:
            FileNotFoundError: it is not there.
        """
        with self._root() as root:
            return os.stat(id, dir_fd=root, follow_symlinks=False).st_mtime

    def ids(self) -> list[str]:
        with self._root() as root:
            return [name for name in _names(root) if not name.startswith(_DRAFT)]

    @contextmanager
    def _root(self) -> Iterator[int]:
        fd = os.open(self.folder, _FOLDER)
        try:
            status = os.fstat(fd)
            if status.st_uid != (ours := os.geteuid()):
                raise PermissionError(errno.EPERM, f"it belongs to user {status.st_uid}, but this is user {ours}")
            if status.st_mode & _OTHERS:
                raise PermissionError(errno.EPERM, f"it is open to others. Run chmod 700 {self.folder}")
            yield fd
        finally:
            os.close(fd)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]
