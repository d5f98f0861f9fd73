"""A file as it was when somebody looked: its bytes, its etag and what the file system said of it."""

import os
from dataclasses import dataclass

from forge_tools.errors import SandboxError
from forge_tools.sandbox.etags import Digest, Hashing
from forge_tools.sandbox.places import Check, Place
from forge_tools.sandbox.refusals import refusal

KEPT_BYTES = 64 << 20
"""Up to this size the bytes themselves are kept."""

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`data` is None where the file is larger than `KEPT_BYTES`; `head` is what it starts with."""

    head: bytes
    data: bytes | None
    status: os.stat_result
    hashing: Hashing

    @property
    def etag(self) -> str:
        return self.hashing.etag


def take_snapshot(place: Place, check: Check) -> Snapshot | None:
    """Read the regular file of a place; None if nothing is there.

    Raises:
        SandboxError: it cannot be read, or is no regular file.
    """
    fd = place.open()
    if fd is None:
        return None
    try:
        return _read(fd, check)
    except OSError as error:
        raise refusal(error, place.shown, "read") from error
    finally:
        os.close(fd)


def etag_at(place: Place, check: Check) -> str | None:
    """The etag of what is at a place; None if nothing is, or nothing that could have one."""
    try:
        snapshot = take_snapshot(place, check)
    except SandboxError:
        return None
    return snapshot.etag if snapshot else None


def _read(fd: int, check: Check) -> Snapshot:
    status = os.fstat(fd)
    data = _kept(fd, status.st_size, check) if status.st_size <= KEPT_BYTES else None
    if data is not None:
        return Snapshot(data[:_CHUNK_BYTES], data, status, Hashing(data))
    digest, head = Digest(), b""
    os.lseek(fd, 0, os.SEEK_SET)
    while chunk := os.read(fd, _CHUNK_BYTES):
        check()
        digest.update(chunk)
        head = head or chunk
    return Snapshot(head, None, status, Hashing(digest.etag))


def _kept(fd: int, size: int, check: Check) -> bytes | None:
    """Read all of a file; None where it has grown beyond what is kept."""
    # All at once, and one byte more to see the end: pieces would have to be joined.
    data = os.read(fd, size + 1)
    check()
    chunks, size = [data], len(data)
    while data and (chunk := os.read(fd, _CHUNK_BYTES)):
        check()
        chunks.append(chunk)
        size += len(chunk)
        if size > KEPT_BYTES:
            return None
    return b"".join(chunks) if len(chunks) > 1 else data
