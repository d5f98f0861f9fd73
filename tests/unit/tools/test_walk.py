"""A walk lists what git would list, follows no link, and reports what it could not read."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_tools.sandbox.paths.folders import Folder
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import Deadline
from forge_tools.tools.file import walk as walks
from forge_tools.tools.file.walk import Walk
from tests.unit.tools.repositories import git, listed_by_git, make_repository

Write = Callable[[str, bytes], Path]


def walked(root: Path, path: str = ".", **options: bool) -> tuple[list[str], Walk]:
    workspace = Workspace(root)
    with workspace.open_folder(path) as target:
        walk = Walk(workspace, target, Deadline(60), **options)
        found = sorted(level.path + name for level in walk.levels() for name in (*level.files, *level.links))
    return found, walk


@pytest.mark.parametrize("first", range(0, 36, 6))
def test_the_files_are_those_of_git(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 6):
        make_repository(root := tmp_path / str(seed), seed)
        found, walk = walked(root)
        assert found == listed_by_git(root), f"seed {seed}"
        assert walk.faults == []


def test_the_made_up_repositories_ignore_and_track_enough_to_tell(tmp_path: Path) -> None:
    ignored = tracked = 0
    for seed in range(12):
        make_repository(root := tmp_path / str(seed), seed)
        everything, _ = walked(root, respect_ignore=False)
        ignored += len(set(everything) - set(listed_by_git(root)))
        tracked += len(git(root, "ls-files", "-ci", "--exclude-standard").splitlines())
    assert ignored > 100
    assert tracked > 5


def test_each_repository_has_rules_of_its_own(ws: Path, write: Write) -> None:
    for name in ("a.log", "inner/a.log", "inner/a.txt", "plain/a.log"):
        write(name, b"")
    write(".gitignore", b"*.log\n")
    write("inner/.git/info/exclude", b"*.txt\n")
    assert walked(ws)[0] == [".gitignore", "inner/a.log"]
    assert walked(ws, "inner")[0] == ["a.log"]


def test_ignore_files_say_more_than_gitignore_files_do(ws: Path, write: Write) -> None:
    for name in ("x/a", "x/b", "x/c"):
        write(name, b"")
    write(".gitignore", b"a\nb\n")
    write(".ignore", b"!a\nc\n")
    write("x/.rgignore", b"!c\na\n")
    assert [name for name in walked(ws)[0] if name.startswith("x/") and len(name) == 3] == ["x/c"]


def test_a_folder_that_was_named_is_looked_into_by_its_own_rules(ws: Path, write: Write) -> None:
    for name in ("build/a", "build/sub/b", "build/sub/c"):
        write(name, b"")
    write(".gitignore", b"build\n")
    write("build/sub/.gitignore", b"c\n")
    assert walked(ws)[0] == [".gitignore"]
    assert walked(ws, "build")[0] == ["a", "sub/.gitignore", "sub/b"]
    assert walked(ws, "build/sub")[0] == [".gitignore", "b"]


def test_rules_above_the_folder_count_and_those_above_the_workspace_do_not(ws: Path, write: Write) -> None:
    write("a/b/x.log", b"")
    write("a/b/y", b"")
    write(".gitignore", b"/a/*/x.log\n")
    (ws.parent / ".gitignore").write_text("y\n")
    assert walked(ws, "a/b")[0] == ["y"]


def test_links_are_listed_and_never_followed(ws: Path, write: Write) -> None:
    write("d/f", b"")
    (ws / "loop").symlink_to(".")
    (ws / "out").symlink_to("/etc")
    assert walked(ws)[0] == ["d/f", "loop", "out"]


def test_hidden_names_are_the_callers_choice_and_git_itself_is_never_listed(ws: Path, write: Write) -> None:
    for name in (".a", ".b/c", "d/.e", "d/f", ".git/config", "sub/.git"):
        write(name, b"")
    assert walked(ws)[0] == [".a", ".b/c", "d/.e", "d/f"]
    assert walked(ws, hidden=False)[0] == ["d/f"]


def test_what_cannot_be_read_is_said_and_the_rest_is_listed(
    ws: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/x", "b/x", "c/.gitignore"):
        write(name, b"")
    enter, read = Folder.enter, Folder.read

    def refuse(real: Callable[..., object], *names: str) -> Callable[..., object]:
        def call(folder: Folder, name: str) -> object:
            if name in names:
                raise PermissionError(13, "Permission denied")
            return real(folder, name)

        return call

    monkeypatch.setattr(Folder, "enter", refuse(enter, "a"))
    monkeypatch.setattr(Folder, "read", refuse(read, ".gitignore"))
    found, walk = walked(ws)
    assert found == ["b/x", "c/.gitignore"]
    assert walk.faults == [("a", "Permission denied"), ("c/.gitignore", "Permission denied")]


def test_a_tree_without_end_is_left_where_it_is_too_deep(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "MAX_DEPTH", 3)
    (ws / "1/2/3/4/5").mkdir(parents=True)
    (ws / "1/2/3/x").touch()
    found, walk = walked(ws)
    assert found == ["1/2/3/x"]
    assert walk.faults == [("1/2/3", "it is deeper than 3 folders")]


def test_a_walk_nobody_waits_for_ends(ws: Path, write: Write) -> None:
    write("a/b/c", b"")
    workspace, deadline = Workspace(ws), Deadline(60)
    with workspace.open_folder(".") as target:
        walk = Walk(workspace, target, deadline)
        for _ in walk.levels():
            deadline.cancel()
    assert walk.is_partial


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (b"name\n" * 210_000, "it is larger than 1,048,576 bytes"),
        (b"".join(b"na*e%d\n" % number for number in range(5001)), "it has more than 5,000 rules with wildcards"),
        (b"a\n!b\n" * 251, "it changes more than 500 times between ignoring and keeping"),
    ],
)
def test_rules_that_would_take_seconds_are_not_applied_and_that_is_said(
    ws: Path, write: Write, rules: bytes, why: str
) -> None:
    for name in ("x/name", "x/other", "y"):
        write(name, b"")
    write("x/.gitignore", rules)
    write(".gitignore", b"other\n")
    started = time.process_time()
    found, walk = walked(ws)
    assert time.process_time() - started < 2
    assert found == [".gitignore", "x/.gitignore", "x/name", "y"]
    assert walk.faults == [("x/.gitignore", f"its rules are not applied: {why}")]
