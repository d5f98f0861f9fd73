"""Folders are listed, entered and read without following a link."""

import os
from pathlib import Path

import pytest

from forge_tools.sandbox.paths.folders import Folder, entries_of


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").write_text("text")
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file-link").symlink_to("in/file")
    os.mkfifo(tmp_path / "pipe")
    return Folder(-1, str(tmp_path))


def test_entries_are_told_apart_and_a_link_is_only_a_link(folder: Folder) -> None:
    entries = entries_of(folder.fd)
    assert (entries.files, entries.folders, entries.others) == ([], ["in"], ["pipe"])
    assert sorted(entries.links) == ["dangling", "file-link", "link"]


def test_a_link_is_neither_entered_nor_read(folder: Folder) -> None:
    for name in ("link", "dangling", "pipe"):
        with pytest.raises(OSError, match=r".+"):
            folder.enter(name)
    for name in ("file-link", "pipe", "in"):
        with pytest.raises(OSError, match=r".+"):
            folder.read(name)


def test_what_is_inside_is_read_through_handles(folder: Folder, tmp_path: Path) -> None:
    with folder.enter("in") as inner:
        (tmp_path / "in").rename(tmp_path / "moved")
        assert inner.read("file") == b"text"
        assert inner.stat("file").st_size == 4
    with pytest.raises(OSError, match="Bad file descriptor"):
        inner.stat("file")


def test_a_file_too_large_for_rules_is_refused(folder: Folder, tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(OSError, match="larger than"):
        folder.read("huge")
