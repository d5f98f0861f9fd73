"""What a repository tracks is read from its index, in every form that git writes."""

from pathlib import Path

import pytest

from forge_tools.sandbox.paths.folders import Folder
from forge_tools.tools.file.walk import NOTHING, parse_index, tracked_by
from tests.unit.tools.repositories import git

FILES = ["a", "deep/er/b", "deep/er/bc", "deep/x", "é", "z" * 100]


@pytest.fixture(params=["sha1", "sha256"])
def repository(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    git(tmp_path, "init", "-q", f"--object-format={request.param}")
    for name in [*FILES, "later"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_every_version_of_the_index_is_read(repository: Path, version: str) -> None:
    git(repository, "update-index", "--index-version", version)
    git(repository, "add", *FILES)
    git(repository, "add", "--intent-to-add", "later")  # an entry of the longer form
    tracked = parse_index((repository / ".git/index").read_bytes())
    assert tracked.files == {*FILES, "later"}
    assert tracked.folders == {"deep", "deep/er"}


def test_a_new_index_is_read_again(repository: Path) -> None:
    with Folder(-1, str(repository / ".git")) as folder:
        assert tracked_by(folder) == NOTHING
        git(repository, "add", "a")
        assert tracked_by(folder).files == {"a"}
        git(repository, "add", "deep")
        assert tracked_by(folder).files == {"a", "deep/er/b", "deep/er/bc", "deep/x"}


@pytest.mark.parametrize("cut", [0, 3, 12, 40, 100, 200])
def test_a_broken_index_tracks_nothing(repository: Path, cut: int) -> None:
    git(repository, "add", *FILES)
    assert parse_index((repository / ".git/index").read_bytes()[:cut]) == NOTHING
    assert parse_index(b"\0" * 500) == NOTHING
