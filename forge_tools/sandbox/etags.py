"""Etags: a short name for the exact bytes of a file, by which a writer knows that nobody else wrote since it read."""

import threading
from hashlib import blake2b

_MANY_BYTES = 1 << 20


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


class Hashing:
    """The etag of these bytes, made on a thread of its own where they are many: who has no need of it yet can go on.

    A text is taken for the etag itself.
    """

    def __init__(self, data: bytes | str) -> None:
        self._etag = data if isinstance(data, str) else ""
        self._thread: threading.Thread | None = None
        if isinstance(data, bytes) and len(data) < _MANY_BYTES:
            self._etag = etag_of(data)
        elif isinstance(data, bytes):
            self._thread = threading.Thread(target=self._hash, args=(data,), daemon=True)
            self._thread.start()

    @property
    def etag(self) -> str:
        if self._thread is not None:
            self._thread.join()
        return self._etag

    def _hash(self, data: bytes) -> None:
        self._etag = etag_of(data)
