"""Deletion of folders: everything in them, and nothing that a link leads to."""

import os
import threading
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.files import remove_tree, survey
from forge_tools.sandbox.paths.workspace import Workspace
from tests.descriptors import descriptors
from tests.waiting import within


def remove(ws: Path, name: str = "tree") -> None:
    with Workspace(ws).place(name, follow=False) as place:
        remove_tree(place, lambda: None)


@pytest.fixture
def tree(ws: Path) -> Path:
    for number in range(3):
        (ws / f"tree/a{number}/b").mkdir(parents=True)
        (ws / f"tree/a{number}/b/f").write_text("12345")
    return ws / "tree"


def test_a_survey_counts_what_a_removal_removes(ws: Path, tree: Path) -> None:
    (tree / "link").symlink_to("../../ws-evil")
    with Workspace(ws).place("tree", follow=False) as place:
        found = survey(place, lambda: None)
    assert (found.files, found.folders) == (4, 6)
    assert found.first == ["tree/link", "tree/a0/b/f", "tree/a1/b/f", "tree/a2/b/f"]
    remove(ws)
    assert not tree.exists()
    assert os.listdir(ws.parent / "ws-evil") == ["secret"]


def test_a_tree_deeper_than_any_path_is_removed(ws: Path) -> None:
    folder = os.open(ws, os.O_RDONLY)
    for name in ["tree", *["d" * 10] * 1500]:
        os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    handles = descriptors(ws)
    remove(ws)
    assert os.listdir(ws) == ["src"]
    assert descriptors(ws) == handles


@pytest.mark.parametrize("name", [".git/config", "sub/.env", "id_rsa"])
def test_a_tree_with_something_protected_is_refused_before_anything_is_removed(ws: Path, tree: Path, name: str) -> None:
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text("x")
    with Workspace(ws).place("tree", follow=False) as place, pytest.raises(SandboxError, match="tree/") as refused:
        survey(place, lambda: None)
    assert refused.value.code == "PATH_PROTECTED"
    assert (tree / "a0/b/f").exists()


def test_a_folder_that_is_moved_away_meanwhile_ends_the_removal(ws: Path, tree: Path) -> None:
    (tree / "a0/b/c").mkdir()
    moved = False

    def move() -> None:
        nonlocal moved
        if not moved:
            (tree / "a2").rename(ws.parent / "ws-evil/a2")
            moved = True

    with Workspace(ws).place("tree", follow=False) as place, pytest.raises(SandboxError):
        remove_tree(place, move)
    assert (ws.parent / "ws-evil/secret").exists()


@pytest.mark.parametrize("name", ["a2/.env", "a2/b/id_rsa", "a2/.git"])
def test_what_is_protected_and_came_after_the_survey_stays_and_what_is_gone_is_said(
    ws: Path, tree: Path, name: str
) -> None:
    visited = []

    def make_it_late() -> None:
        visited.append(len(list(tree.rglob("f"))))
        (tree / "a2").mkdir(exist_ok=True)
        for number in (0, 1, 2):
            if (tree / f"a{number}").exists():
                target = tree / name.replace("a2", f"a{number}")
                if target.parent.exists():
                    target.mkdir(exist_ok=True) if name.endswith(".git") else target.write_text("x")

    (tree / "first").write_text("x")
    with Workspace(ws).place("tree", follow=False) as place:
        survey(place, lambda: None)
        with pytest.raises(SandboxError, match=r"The rest is unchanged; \d files? of tree (is|are) deleted") as refused:
            remove_tree(place, make_it_late)
    assert refused.value.code == "PATH_PROTECTED"
    assert not (tree / "first").exists()
    assert list(tree.rglob(name.rpartition("/")[2]))


def test_folders_that_are_swapped_for_links_under_way_lose_nothing_outside(ws: Path) -> None:
    outside = ws.parent / "ws-evil"
    for number in range(200):
        (outside / str(number)).write_text("keep")
    stop = threading.Event()

    def swap() -> None:
        time_left = within(60, "nobody stops the swaps")
        while not stop.is_set() and next(time_left):
            for number in range(20):
                path = ws / f"tree/{number}"
                try:
                    path.rmdir()
                    path.symlink_to(outside)
                except OSError:
                    continue

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(30):
            for number in range(20):
                (ws / f"tree/{number}").mkdir(parents=True, exist_ok=True)
            try:
                remove(ws)
            except SandboxError:
                remove_quietly(ws)
    finally:
        stop.set()
        thread.join()
    assert len(os.listdir(outside)) == 201


def remove_quietly(ws: Path) -> None:
    for _ in range(20):
        try:
            remove(ws)
            return
        except SandboxError:
            continue
