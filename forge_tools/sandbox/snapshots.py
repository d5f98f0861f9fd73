"""A file as it was when somebody looked: its bytes, its etag and what the file system said of it."""

import os
from dataclasses import dataclass

from forge_tools.errors import SandboxError
from forge_tools.sandbox.etags import Digest
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
    etag: str
    status: os.stat_result


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
    digest, chunks, size, head = Digest(), [], 0, b""
    # What is kept is read at once, one byte more to see the end: pieces would have to be joined.
    length = status.st_size + 1 if status.st_size <= KEPT_BYTES else _CHUNK_BYTES
    while chunk := os.read(fd, length):
        check()
        digest.update(chunk)
        head = head or chunk[:_CHUNK_BYTES]
        size += len(chunk)
        if size <= KEPT_BYTES:
            chunks.append(chunk)
        length = _CHUNK_BYTES
    data = b"".join(chunks) if size <= KEPT_BYTES else None
    return Snapshot(head, data, digest.etag, status)
