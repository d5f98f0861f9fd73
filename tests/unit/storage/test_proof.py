"""What proves the audit chain: private keys stay private, wrong ones are named; heads are kept, and give no false alarm."""

import fcntl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from forge_tools.errors import ConfigurationError
from forge_tools.model.audit import Head
from forge_tools.storage.audit.proof import HeadFile, Signer, Trust, make_key
from tests.descriptors import descriptors
from tests.waiting import wait_until


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


def head(sequence: int) -> Head:
    return Head(sequence, f"{sequence:064x}", datetime.now(UTC), None, None)


def kept(*sequences: int) -> list[tuple[int, str]]:
    return [(one, f"{one:064x}") for one in sequences]


def test_heads_are_kept_in_their_order_by_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    file = HeadFile(tmp_path / "state" / "audit.heads")
    assert file.read() == []
    assert [file.keep(head(number)) for number in (1, 2, 2, 3)] == [True, False, False, False]
    assert file.read() == kept(1, 2, 3)
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.parent.stat().st_mode & 0o777 == 0o700
    assert file.path.read_text().splitlines()[0] == str(head(1))


def test_it_stays_small_and_loses_the_oldest_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.storage.audit.proof.KEPT", most := 20)
    file = HeadFile(tmp_path / "audit.heads")
    for number in range(1, 5 * most):
        file.keep(head(number))
    found = file.read()
    assert most <= len(found) <= 2 * most + 1
    assert found == kept(*range(5 * most - len(found), 5 * most))
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["audit.heads"]


def test_several_writers_at_once_lose_no_head(tmp_path: Path) -> None:
    path = tmp_path / "audit.heads"
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda number: HeadFile(path).keep(head(number)), range(1, 200))) == 1
    assert sorted(HeadFile(path).read()) == kept(*range(1, 200))


def test_a_writer_that_waits_while_another_shortens_the_file_adds_to_the_new_one(tmp_path: Path) -> None:
    file, new = HeadFile(tmp_path / "audit.heads"), tmp_path / "audit.heads.new"
    file.keep(head(1))
    new.write_text(f"{head(1)}\n{head(2)}\n")
    with ThreadPoolExecutor(1) as pool, file.path.open() as shortened:
        fcntl.flock(shortened, fcntl.LOCK_EX)
        waiting = pool.submit(file.keep, head(3))
        wait_until(lambda: len(descriptors(file.path)) == 2)
        new.replace(file.path)
        fcntl.flock(shortened, fcntl.LOCK_UN)
        assert waiting.result(30) is False
    assert file.read() == kept(1, 2, 3)


@pytest.mark.parametrize("torn", ["3", "3:", "3:00ff", ""])
def test_half_a_line_that_a_crash_left_is_passed_over(tmp_path: Path, torn: str) -> None:
    file = HeadFile(tmp_path / "audit.heads")
    file.keep(head(1))
    with file.path.open("a") as opened:
        opened.write(torn)
    assert file.read() == kept(1)
    file.keep(head(2))
    assert file.read() == kept(1, 2)


@pytest.mark.parametrize("content", [b"\xff\x00", b"-----BEGIN PRIVATE KEY-----\n", b"1:xyz\n", b"hello"])
def test_what_holds_something_else_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "audit.heads"
    path.write_bytes(content)
    for attempt in (HeadFile(path).read, lambda: HeadFile(path).keep(head(1))):
        with pytest.raises(
            ConfigurationError, match="contains something other than heads of an audit chain, in line 1"
        ):
            attempt()
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_used_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Is a directory.*FORGE_AUDIT_HEADS"):
        HeadFile(tmp_path).read()
    (tmp_path / "file").touch()
    below = HeadFile(tmp_path / "file" / "audit.heads")
    assert below.read() == []
    with pytest.raises(ConfigurationError, match=r"cannot be written.*FORGE_AUDIT_HEADS"):
        below.keep(head(1))
