"""The keys of the audit chain: private ones stay private, wrong ones are named."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from forge_tools.errors import ConfigurationError
from forge_tools.storage.audit.keys import Signer, Trust, make_key


def test_what_is_signed_is_accepted_by_the_public_key_and_nothing_else_is(tmp_path: Path) -> None:
    signer = make_key(tmp_path / "audit.key")
    for given in ("audit.key.pub", "audit.key"):
        trust = Trust.load([tmp_path / given])
        assert trust.knows(signer.key_id)
        assert trust.accepts(signer.key_id, b"head", signer.sign(b"head"))
        assert not trust.accepts(signer.key_id, b"tail", signer.sign(b"head"))
        assert not trust.accepts(signer.key_id, b"head", "no hexadecimal digits")
    assert not Trust().knows(signer.key_id)


def test_a_private_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Signer.load(path)


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    first = make_key(tmp_path / "audit.key")
    with pytest.raises(ConfigurationError, match="is there already"):
        make_key(tmp_path / "audit.key")
    assert Signer.load(tmp_path / "audit.key").key_id == first.key_id
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.key", "audit.key.pub"]


def test_of_many_that_make_the_key_at_once_one_wins(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: Signer.load_or_make(tmp_path / "audit.key").key_id, range(8)))
    assert len(set(made)) == 1


def test_a_key_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for name, content in (("text", b"no key"), ("curve", other)):
        path = tmp_path / name
        path.write_bytes(content)
        path.chmod(0o600)
        for load in (Signer.load, lambda path: Trust.load([path])):
            with pytest.raises(ConfigurationError, match=f"{name} is no Ed25519 .* audit keygen"):
                load(path)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            Signer.load(missing)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        make_key(tmp_path / "no" / "folder")
