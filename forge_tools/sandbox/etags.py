"""Etags: a short name for the exact bytes of a file, by which a writer knows that nobody else wrote since it read."""

from hashlib import blake2b


class Digest:
    """Takes a file piece by piece."""

    def __init__(self, start: bytes = b"") -> None:
        self._hash = blake2b(start, digest_size=16)

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    @property
    def etag(self) -> str:
        return f"b2:{self._hash.hexdigest()}"


def etag_of(data: bytes) -> str:
    """The etag of a file that holds these bytes."""
    return Digest(data).etag
