"""The bytes of an artifact in parts, each compressed by itself: a page needs only the parts that it lies in."""

import zlib

PART_BYTES = 256 << 10
"""Bytes of an artifact in one part, before it is compressed."""

MAX_PACKED_BYTES = PART_BYTES + 4096
"""What does not compress grows by a few bytes."""

_LEVEL = 1  # a third of the time of the default for a tenth more bytes


def count_parts(size: int) -> int:
    """How many parts so many bytes are in."""
    return -(-size // PART_BYTES)


def pack(data: bytes) -> bytes:
    """Compress one part."""
    return zlib.compress(data, _LEVEL)


def unpack(data: bytes) -> bytes:
    """Return what one part holds, which its checksum vouches for; no more than a part may hold, whoever wrote it.

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
    return found


def unpack_part(data: bytes, number: int, size: int) -> bytes:
    """Do what `unpack` does for a part of an artifact of `size` bytes, which has to be as long as it must.

    Raises:
        ValueError: it is damaged.
    """
    found = unpack(data)
    if len(found) != min(PART_BYTES, size - number * PART_BYTES):
        raise ValueError(f"part {number} is damaged: it holds {len(found):,} bytes")
    return found
