"""A workspace of several roots, some of them only to be read."""

import os
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.records import ExecutionContext
from forge_tools.sandbox.paths import Root, Workspace
from forge_tools.sandbox.reach import REACH, Reach


@pytest.fixture
def docs(ws: Path) -> Path:
    folder = ws.parent / "docs"
    folder.mkdir()
    (folder / "guide.md").write_text("guide")
    return folder


@pytest.fixture
def both(ws: Path, docs: Path) -> Workspace:
    return Workspace([Root(ws), Root(docs, is_read_only=True)])


def test_each_root_is_reached_by_its_own_path(way: str, both: Workspace, ws: Path, docs: Path) -> None:
    with both.open_file("src/foo.py") as relative, both.open_file(f"{docs}/guide.md") as absolute:
        assert (relative.name, absolute.name) == ("src/foo.py", f"{docs}/guide.md")
        assert both.inside(absolute) == "guide.md"
        with both.open_root(absolute) as root:
            assert os.path.samestat(root.stat, docs.stat())
    with both.open_root() as root:
        assert os.path.samestat(root.stat, ws.stat())


def test_what_is_only_to_be_read_is_not_written(way: str, both: Workspace, docs: Path) -> None:
    with pytest.raises(SandboxError, match=r"read-only\. Write elsewhere") as refused:
        both.place(f"{docs}/guide.md")
    assert refused.value.code == "READ_ONLY_WORKSPACE"
    both.place("new.md").close()


@pytest.mark.parametrize("target", ["../docs/guide.md", "{docs}/guide.md"])
def test_no_link_leads_from_one_root_to_another(way: str, both: Workspace, ws: Path, docs: Path, target: str) -> None:
    (ws / "link").symlink_to(target.format(docs=docs))
    with pytest.raises(SandboxError, match="outside the workspace: link"):
        both.open("link")
    with pytest.raises(SandboxError, match="outside the workspace: link"):
        both.place("link")


def test_the_working_directory_may_lie_in_any_root(way: str, ws: Path, docs: Path) -> None:
    workspace = Workspace([Root(ws), Root(docs)], str(docs))
    with workspace.open_file("guide.md") as file:
        assert file.name == "guide.md"
    with workspace.open_file(f"{ws}/src/foo.py") as file:
        assert file.name == f"{ws}/src/foo.py"


def test_of_roots_in_each_other_the_inner_one_counts(way: str, ws: Path) -> None:
    workspace = Workspace([Root(ws), Root(ws / "src", is_read_only=True)])
    with pytest.raises(SandboxError, match="read-only"):
        workspace.place(f"{ws}/src/foo.py")
    workspace.place(f"{ws}/new").close()


def test_a_context_may_get_several_roots(ws: Path, docs: Path) -> None:
    token = REACH.set(Reach(root=(Root(ws), Root(docs, is_read_only=True))))
    try:
        Workspace.for_context(ExecutionContext(working_dir=".")).open(f"{docs}/guide.md").close()
    finally:
        REACH.reset(token)


def test_a_root_that_was_moved_goes_on_being_the_same_folder(way: str, ws: Path) -> None:
    workspace = Workspace(ws)
    ws.rename(ws.parent / "moved")
    with workspace.open_file("src/foo.py") as file:
        assert workspace.inside(file) == "src/foo.py"
