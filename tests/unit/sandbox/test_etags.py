"""Etags name bytes, however they were made."""

import pytest

from forge_tools.sandbox.paths.files import Digest, Hashing, etag_of


@pytest.mark.parametrize("size", [0, 10, 3 << 20])
def test_hashing_aside_gives_the_etag_that_hashing_at_once_gives(size: int) -> None:
    data = b"x" * size
    hashing = Hashing(data)
    pieces = Digest()
    for start in range(0, size, 1000):
        pieces.update(data[start : start + 1000])
    assert hashing.etag == hashing.etag == etag_of(data) == pieces.etag


def test_an_etag_that_is_known_stays_what_it_is() -> None:
    assert Hashing(etag_of(b"x")).etag == etag_of(b"x")
