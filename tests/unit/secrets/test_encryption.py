"""Encrypted values open with one key, and only as part of one call."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import ConfigurationError, EncryptionError
from forge_tools.model import new_id
from forge_tools.secrets.encryption import (
    Encryptor,
    KeyFolder,
    Opener,
    decrypted_reply,
    encrypted_reply,
    key_id,
    new_reply_key,
)

CALL = {"execution_id": "01a00000-0000-7000-8000-00000000abcd", "tool": "Login", "shown": '{"user":"ada"}'}


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "keys")


def test_what_was_encrypted_for_a_call_opens_for_that_call(keys: KeyFolder) -> None:
    encrypted = Encryptor(keys.new()).encrypt({"hidden": {"pw": "hunter22 é \ud800"}}, **CALL)

    assert "hunter22" not in encrypted
    assert base64.b64encode(b"hunter22").decode()[:8] not in encrypted
    assert Opener(keys).open(encrypted, **CALL) == {"hidden": {"pw": "hunter22 é \ud800"}}


def test_the_same_secret_never_looks_the_same(keys: KeyFolder) -> None:
    encryptor = Encryptor(keys.new())

    assert encryptor.encrypt({"a": 1}, **CALL) != encryptor.encrypt({"a": 1}, **CALL)


@pytest.mark.parametrize(
    "other", [{"execution_id": "01a00000-0000-7000-8000-00000000abce"}, {"tool": "Echo"}, {"shown": '{"user":"eve"}'}]
)
def test_moved_to_another_call_it_stays_shut(keys: KeyFolder, other: dict[str, str]) -> None:
    encrypted = Encryptor(keys.new()).encrypt({"pw": "hunter22"}, **CALL)

    with pytest.raises(EncryptionError, match="do not belong to this call") as caught:
        Opener(keys).open(encrypted, **CALL | other)
    assert "hunter22" not in str(caught.value)


def test_the_parts_it_is_bound_to_cannot_be_shifted_against_each_other(keys: KeyFolder) -> None:
    encrypted = Encryptor(keys.new()).encrypt({}, execution_id="ab", tool="c", shown="d")

    with pytest.raises(EncryptionError):
        Opener(keys).open(encrypted, execution_id="a", tool="bc", shown="d")


@pytest.mark.parametrize(
    "alter",
    [
        lambda s: s[:-8],
        lambda s: s[:-1] + "!",
        lambda s: s[:-1] + "é",
        lambda s: s[:40],
        lambda s: s[:19],
        lambda s: s + "AAAA",
    ],
)
def test_truncated_or_altered_it_stays_shut(keys: KeyFolder, alter: Any) -> None:
    encrypted = Encryptor(keys.new()).encrypt({"pw": "hunter22"}, **CALL)

    with pytest.raises(EncryptionError, match="do not belong"):
        Opener(keys).open(alter(encrypted), **CALL)


@pytest.mark.parametrize("encrypted", ["", "x", "2.abc.def", "1..", "1.../../etc/passwd.x"])
def test_what_was_never_encrypted_is_refused_with_a_sentence(keys: KeyFolder, encrypted: str) -> None:
    with pytest.raises(EncryptionError):
        Opener(keys).open(encrypted, **CALL)


def test_without_its_key_it_says_which_one_is_missing_and_may_be_tried_elsewhere(
    keys: KeyFolder, tmp_path: Path
) -> None:
    public = KeyFolder(tmp_path / "elsewhere").new()
    held = key_id(keys.new())

    with pytest.raises(EncryptionError) as caught:
        Opener(keys).open(Encryptor(public).encrypt({}, **CALL), **CALL)

    assert caught.value.retryable
    assert key_id(public) in caught.value.message
    assert held in caught.value.message


def test_under_the_name_of_another_key_it_stays_shut(keys: KeyFolder) -> None:
    one, other = keys.new(), keys.new()
    encrypted = Encryptor(one).encrypt({}, **CALL)

    with pytest.raises(EncryptionError, match="do not belong"):
        Opener(keys).open(encrypted.replace(key_id(one), key_id(other)), **CALL)


def test_a_key_that_comes_later_is_found_without_a_restart(keys: KeyFolder) -> None:
    opener = Opener(keys)
    first = Encryptor(keys.new()).encrypt({"n": 1}, **CALL)
    assert opener.open(first, **CALL) == {"n": 1}

    second = Encryptor(keys.new()).encrypt({"n": 2}, **CALL)

    assert opener.open(second, **CALL) == {"n": 2}


def test_private_halves_are_files_for_their_owner_alone(keys: KeyFolder) -> None:
    public = keys.new()

    path = keys.folder / f"{key_id(public)}.key"
    assert (path.stat().st_mode & 0o777, keys.folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert keys.ids() == [key_id(public)]
    private = keys.private(key_id(public))
    assert private is not None
    assert private.public_key().public_bytes_raw() == public


def test_a_key_that_all_may_read_is_not_used(keys: KeyFolder) -> None:
    path = keys.folder / f"{key_id(keys.new())}.key"
    path.chmod(0o644)

    with pytest.raises(ConfigurationError, match="chmod 600"):
        keys.private(path.stem)


@pytest.mark.parametrize("text", ["", "not base64!", base64.b64encode(b"short").decode()])
def test_a_file_that_holds_no_key_is_named(keys: KeyFolder, text: str) -> None:
    path = keys.folder / f"{key_id(keys.new())}.key"
    path.write_text(text)

    with pytest.raises(ConfigurationError, match="does not contain an X25519 key"):
        keys.private(path.stem)


def test_a_file_under_the_name_of_another_key_is_named(keys: KeyFolder) -> None:
    one, other = (keys.folder / f"{key_id(keys.new())}.key" for _ in range(2))
    one.write_bytes(other.read_bytes())

    with pytest.raises(ConfigurationError, match="contains a different key"):
        keys.private(one.stem)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigurationError, match="FORGE_ENCRYPTION_KEYS"):
        KeyFolder(tmp_path / "file").new()


def test_a_key_that_is_forgotten_opens_nothing_any_more(keys: KeyFolder) -> None:
    public = keys.new()
    encrypted = Encryptor(public).encrypt({}, **CALL)

    for _ in range(2):
        keys.forget(key_id(public))
        assert keys.ids() == []
    with pytest.raises(EncryptionError, match="does not hold"):
        Opener(keys).open(encrypted, **CALL)


def test_an_id_that_is_none_deletes_nothing(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    beside = tmp_path / "victim.key"
    beside.touch()

    KeyFolder(tmp_path / "keys").forget("../victim")
    assert beside.exists()


@pytest.mark.parametrize("public", [b"", b"short", bytes(32), bytes([1]) + bytes(31)])
def test_what_is_not_a_public_key_encrypts_nothing_and_is_named(public: bytes) -> None:
    with pytest.raises(EncryptionError, match=key_id(public)):
        Encryptor(public).encrypt({"pw": "hunter22"}, **CALL)


REPLY_ID, REPLY_KEY = new_id(), new_reply_key()


def reply(text: bytes = b"the result") -> bytes:
    encrypted = encrypted_reply(REPLY_KEY, REPLY_ID, text)
    assert encrypted is not None
    return encrypted


@pytest.mark.parametrize("text", [b"", b"the result", b"\0" * 100_000])
def test_a_reply_is_decrypted_again(text: bytes) -> None:
    assert decrypted_reply(REPLY_KEY, REPLY_ID, reply(text)) == text
    assert text[:5] not in reply(text) or not text


def test_the_same_result_never_looks_the_same() -> None:
    assert len({reply() for _ in range(100)}) == 100


ALTERED_REPLY: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "noise": lambda _: b"x",
    "cut at its end": lambda whole: whole[:-1],
    "cut at its beginning": lambda whole: whole[1:],
    "one bit": lambda whole: bytes([whole[0] ^ 1]) + whole[1:],
}


@pytest.mark.parametrize("how", ALTERED_REPLY)
def test_a_reply_that_was_altered_is_not_read(how: str) -> None:
    assert decrypted_reply(REPLY_KEY, REPLY_ID, ALTERED_REPLY[how](reply())) is None


def test_another_key_or_execution_reads_no_reply() -> None:
    assert decrypted_reply(new_reply_key(), REPLY_ID, reply()) is None
    assert decrypted_reply(REPLY_KEY, new_id(), reply()) is None


@pytest.mark.parametrize("key", ["", "no key", "AAAA", "\0", "é" * 16, "c2l4dGVlbiBieXRlcyE"])
def test_with_what_is_not_a_key_no_reply_is_encrypted(key: str) -> None:
    assert encrypted_reply(key, REPLY_ID, b"text") is None
