"""A result inside a notification can be read only with the key and for its own execution."""

from collections.abc import Callable

import pytest

from forge_tools.model import new_id
from forge_tools.secrets import decrypted_reply, encrypted_reply, new_reply_key

ID, KEY = new_id(), new_reply_key()


def reply(text: bytes = b"the result") -> bytes:
    encrypted = encrypted_reply(KEY, ID, text)
    assert encrypted is not None
    return encrypted


@pytest.mark.parametrize("text", [b"", b"the result", b"\0" * 100_000])
def test_what_is_encrypted_is_decrypted_again(text: bytes) -> None:
    assert decrypted_reply(KEY, ID, reply(text)) == text
    assert text[:5] not in reply(text) or not text


def test_the_same_result_never_looks_the_same() -> None:
    assert len({reply() for _ in range(100)}) == 100


ALTERED: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "noise": lambda _: b"x",
    "cut at its end": lambda whole: whole[:-1],
    "cut at its beginning": lambda whole: whole[1:],
    "one bit": lambda whole: bytes([whole[0] ^ 1]) + whole[1:],
}


@pytest.mark.parametrize("how", ALTERED)
def test_what_was_altered_is_not_read(how: str) -> None:
    assert decrypted_reply(KEY, ID, ALTERED[how](reply())) is None


def test_another_key_or_execution_reads_nothing() -> None:
    assert decrypted_reply(new_reply_key(), ID, reply()) is None
    assert decrypted_reply(KEY, new_id(), reply()) is None


@pytest.mark.parametrize("key", ["", "no key", "AAAA", "\0", "é" * 16, "c2l4dGVlbiBieXRlcyE"])
def test_with_what_is_not_a_key_nothing_is_encrypted(key: str) -> None:
    assert encrypted_reply(key, ID, b"text") is None
