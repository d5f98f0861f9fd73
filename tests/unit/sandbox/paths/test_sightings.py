"""Folders that have had names put in or taken out since somebody looked are known, those above and below them too."""

import os
import time
from pathlib import Path

import pytest

from forge_tools.sandbox.paths.folders import Changes, Look, Sighting, open_allowed
from forge_tools.sandbox.paths.workspace import Workspace
from tests.descriptors import descriptors


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a/b", "a/c", "d"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("x")
    return tmp_path


def seen(tree: Path) -> dict[str, Sighting]:
    look, found = Look(), {}
    for path in ("", "a/", "a/b/", "a/c/", "d/"):
        fd = os.open(tree / path, os.O_RDONLY)
        found[path] = look.at(fd)
        os.close(fd)
    return found


def changes(tree: Path, before: dict[str, Sighting]) -> Changes:
    fd = os.open(tree, os.O_RDONLY)
    try:
        return Changes(before, fd)
    finally:
        os.close(fd)


def test_where_nothing_happened_nothing_is_in_doubt(tree: Path) -> None:
    before = seen(tree)
    (tree / "a/b/file").write_text("longer than before")
    found = changes(tree, before)
    assert not found
    assert [found.above(path) for path in ("file", "a/b/file", "d/x")] == [None, None, None]


def test_what_lies_below_a_changed_folder_is_in_doubt_and_nothing_else(tree: Path) -> None:
    before = seen(tree)
    (tree / "a/new").write_text("x")
    found = changes(tree, before)
    assert [found.above(path) for path in ("a/x", "a/b/file", "d/x", "x")] == ["a/", "a/", None, None]
    assert found.above("never/seen/x") == "never/"


def test_a_swap_that_was_taken_back_at_once_is_seen(tree: Path) -> None:
    before = seen(tree)
    (tree / "a/b").rename(tree / "held")
    (tree / "a/b").symlink_to("/etc")
    (tree / "a/b").unlink()
    (tree / "held").rename(tree / "a/b")
    assert changes(tree, before).above("a/b/file") == ""


def test_a_link_in_the_place_of_a_folder_is_another_folder(tree: Path) -> None:
    before = seen(tree)
    (tree / "d").rmdir()
    (tree / "d").symlink_to("a")
    assert changes(tree, before).above("d/x") is not None


def test_a_folder_that_changes_all_the_time_is_never_sure(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: (tree / f"d/{time.monotonic_ns()}").write_text("x") and None)
    (tree / "d/first").write_text("x")
    fd = os.open(tree / "d", os.O_RDONLY)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: 0)
    assert Look().at(fd)[2] == -1
    os.close(fd)


@pytest.mark.parametrize(
    ("name", "is_open"), [("file", True), ("in", True), ("out", False), (".env", False), ("d", False)]
)
def test_only_what_may_be_read_is_opened_again(tree: Path, name: str, is_open: bool) -> None:
    for file in ("file", ".env"):
        (tree / file).write_text("x")
    (tree / "in").symlink_to("a/b/file")
    (tree / "out").symlink_to("/etc/hostname")
    workspace = Workspace(tree)
    with workspace.open_root() as root:
        before = descriptors(tree, "/etc")
        handle = open_allowed(root.root, name, name)
        assert (handle is not None) == is_open
        if handle is not None:
            handle.close()
        assert descriptors(tree, "/etc") == before
