"""Etags name bytes, however they were made."""

import pytest

from forge_tools.sandbox.paths.files import Digest, etag_of, hashing


@pytest.mark.parametrize("size", [0, 10, 3 << 20])
def test_hashing_aside_gives_the_etag_that_hashing_at_once_gives(size: int) -> None:
    data = b"x" * size
    aside = hashing(data)
    pieces = Digest()
    for start in range(0, size, 1000):
        pieces.update(data[start : start + 1000])
    assert aside.result() == aside.result() == etag_of(data) == pieces.etag
