"""The file of the last heads: small, for its owner alone, and never a reason for a false alarm."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from forge_tools.errors import ConfigurationError
from forge_tools.model.audit import Head
from forge_tools.storage.audit.heads import HeadFile


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
    monkeypatch.setattr("forge_tools.storage.audit.heads.KEPT", most := 20)
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
