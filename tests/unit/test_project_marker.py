"""The file `.forge`: which home a folder has after it was moved, copied or is not writable."""

import os
import shutil
import stat
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from forge_tools.errors import ConfigurationError, StackError
from forge_tools.project import Marker


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "sub" / "deep").mkdir(parents=True)
    return folder


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    return tmp_path / "homes"


def taken(folder: Path, homes: Path) -> Marker:
    """What a folder has once a stack has run in it."""
    marker = Marker.find(folder, homes)
    marker.write()
    marker.home.mkdir(parents=True, exist_ok=True)
    marker.keep()
    return marker


def test_a_folder_without_a_file_has_a_home_of_its_own_already(project: Path, homes: Path) -> None:
    marker = Marker.find(project, homes)

    assert (marker.folder, marker.home.parent, marker.copied_from) == (project, homes, None)
    assert UUID(marker.home.name)
    assert Marker.find(project / "sub", homes).home != marker.home == taken(project, homes).home
    assert list(homes.iterdir()) == [marker.home]


def test_it_is_found_from_the_folders_below_and_through_links(project: Path, homes: Path, tmp_path: Path) -> None:
    marker = taken(project, homes)
    (tmp_path / "link").symlink_to(project)

    assert Marker.find(project / "sub" / "deep", homes) == marker == Marker.find(tmp_path / "link" / "sub", homes)
    assert (project / ".forge").read_text() == f"{marker.home.name}\n"
    assert stat.S_IMODE((marker.home / "folder").stat().st_mode) == 0o600
    assert sorted(path.name for path in project.iterdir()) == [".forge", "sub"]


def test_a_folder_that_was_moved_takes_its_home_along(project: Path, homes: Path) -> None:
    before = taken(project, homes)
    moved = project.rename(project.with_name("moved"))

    after = taken(moved, homes)

    assert (after.home, after.folder, after.copied_from) == (before.home, moved, None)
    project.mkdir()
    assert Marker.find(project, homes).home != before.home, "who comes to the old place starts anew"


def test_a_copy_gets_a_home_of_its_own_and_keeps_it(project: Path, homes: Path) -> None:
    first = taken(project, homes)
    copy = Path(shutil.copytree(project, project.with_name("copy")))

    told = Marker.find(copy / "sub", homes)

    assert (told.copied_from, told.folder) == (project, copy)
    assert told.home != first.home
    taken(copy, homes)
    assert Marker.find(copy, homes) == Marker(copy, told.home)
    assert Marker.find(project, homes) == first


def test_of_two_copies_the_first_to_have_the_home_keeps_it(project: Path, homes: Path) -> None:
    (project / ".forge").write_text(f"{uuid4()}\n")
    copy = Path(shutil.copytree(project, project.with_name("copy")))
    assert Marker.find(project, homes).home == Marker.find(copy, homes).home

    taken(copy, homes)

    assert Marker.find(project, homes).copied_from == copy


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\xff\xfe\0", b"../../etc", b"x" * 1_000_000])
def test_a_file_without_an_id_is_named(project: Path, homes: Path, content: bytes) -> None:
    (project / ".forge").write_bytes(content)

    with pytest.raises(
        ConfigurationError, match=r"project/\.forge does not hold the id of a stack\. Correct or remove"
    ):
        Marker.find(project / "sub", homes)


def test_a_folder_of_that_name_is_named_and_left_alone(project: Path, homes: Path) -> None:
    marker = Marker.find(project, homes)
    (project / ".forge").mkdir()

    with pytest.raises(
        ConfigurationError, match=r"/\.forge is a folder, perhaps made by an unreleased version .*FORGE_HOME"
    ):
        Marker.find(project / "sub", homes)
    marker.remove()

    assert (project / ".forge").is_dir()


def test_a_link_that_leads_to_itself_is_named_and_one_to_nothing_counts_as_absent(project: Path, homes: Path) -> None:
    absent = Marker.find(project, homes)
    (project / ".forge").symlink_to("nothing")
    assert Marker.find(project, homes) == absent
    (project / ".forge").unlink()
    (project / ".forge").symlink_to(".forge")

    with pytest.raises(
        ConfigurationError, match=r"project/\.forge cannot be read \(Too many levels .*Correct or remove"
    ):
        Marker.find(project / "sub", homes)


def test_what_is_neither_file_nor_folder_holds_nobody_up(project: Path, homes: Path) -> None:
    os.mkfifo(project / ".forge")

    assert Marker.find(project / "sub", homes).folder == project / "sub"


def test_a_strangers_file_above_decides_nothing(project: Path, homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = taken(project, homes)
    if os.getuid() == 0:
        os.chown(project / ".forge", 65534, -1)
    monkeypatch.setattr(os, "getuid", lambda: 4711)

    assert Marker.find(project / "sub", homes).folder == project / "sub"
    assert Marker.find(project, homes) == marker


def test_a_name_that_is_not_text_has_a_home_too(tmp_path: Path, homes: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff\n")
    folder.mkdir()
    marker = taken(folder, homes)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))

    assert Marker.find(copy, homes).copied_from == folder == marker.folder


def test_a_folder_that_cannot_be_written_to_is_named(homes: Path) -> None:
    with pytest.raises(StackError, match=r"/proc/\.forge, .* cannot be written \(.*\).* Set FORGE_HOME"):
        Marker.find(Path("/proc"), homes).write()
