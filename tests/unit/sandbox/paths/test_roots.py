"""A workspace of several roots, some of them only to be read."""

import os
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.model import ExecutionContext
from forge_tools.sandbox.paths.confinement import OpenRoot, Root
from forge_tools.sandbox.paths.refusals import Protection
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.reach import REACH, Reach
from tests.descriptors import descriptors


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
    with pytest.raises(SandboxError, match=r"read-only part of the workspace\. Write elsewhere") as refused:
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


@pytest.fixture
def nested(ws: Path) -> Workspace:
    """A read-only root in a writable one, and in that a writable one again; the first two are named by links, too."""
    (ws / "src/deep/out").mkdir(parents=True)
    (ws.parent / "alias").symlink_to(ws / "src")
    (ws / "into").symlink_to("src")
    return Workspace([Root(ws), Root(ws.parent / "alias", is_read_only=True), Root(ws / "src/deep/out")])


@pytest.mark.parametrize(
    "path",
    ["src/foo.py", "src/new", "src/a/b/new", "src/../src/new", "into/new", "src/deep/new", "src", "{ws}/src/new"],
)
def test_no_way_of_writing_a_path_gets_into_a_read_only_root(way: str, nested: Workspace, ws: Path, path: str) -> None:
    with pytest.raises(SandboxError) as refused:
        nested.place(path.format(ws=ws)).close()
    assert refused.value.code == "READ_ONLY_WORKSPACE"


@pytest.mark.parametrize("path", ["new", "srcs/new", "src/deep/out/new", "into/deep/out/new", "{ws}/src/deep/out/new"])
def test_around_and_inside_of_it_what_may_be_written_is(way: str, nested: Workspace, ws: Path, path: str) -> None:
    nested.place(path.format(ws=ws)).close()


def test_a_folder_that_contains_a_read_only_root_cannot_be_replaced_or_deleted(way: str, ws: Path) -> None:
    (ws / "a/b/kept").mkdir(parents=True)
    workspace = Workspace([Root(ws), Root(ws / "a/b/kept", is_read_only=True)])
    for path in ("a", "a/b"):
        with pytest.raises(SandboxError, match=r"contains .*a/b/kept, which is read-only"):
            workspace.place(path, follow=False)
    workspace.place("a/b/other").close()


def test_what_an_inner_root_protects_is_protected_by_every_path(way: str, ws: Path) -> None:
    ours = Protection(secrets=("foo.*",))
    workspace = Workspace([Root(ws), Root(ws / "src", protection=ours)])
    (ws / "foo.txt").write_text("open")
    for path in ("src/foo.py", f"{ws}/src/foo.py"):
        with pytest.raises(SandboxError, match="protected by policy"):
            workspace.open(path)
    workspace.open("foo.txt").close()


def test_an_inner_root_may_be_written_though_what_is_around_it_may_not(way: str, ws: Path) -> None:
    workspace = Workspace([Root(ws, is_read_only=True), Root(ws / "src")])
    workspace.place("src/new").close()
    with pytest.raises(SandboxError, match="read-only"):
        workspace.place("new")


def test_a_call_may_name_a_workspace_of_its_reach(ws: Path, docs: Path) -> None:
    token = REACH.set(Reach(root=ws, workspaces={"docs": [Root(docs, is_read_only=True)]}))
    try:
        with Workspace.for_context(ExecutionContext(working_dir=".", workspace="docs")).open("guide.md") as file:
            assert file.name == "guide.md"
        with pytest.raises(SandboxError, match=r"Unknown workspace: doc \(did you mean 'docs'\?\)\. Known here: docs"):
            Workspace.for_context(ExecutionContext(working_dir=".", workspace="doc"))
        Workspace.for_context(ExecutionContext(working_dir=".")).open("src/foo.py").close()
    finally:
        REACH.reset(token)


@pytest.mark.parametrize("path", [".env", "way/.env", "other-name", "src/../.env"])
def test_what_is_protected_is_not_opened_to_read_by_any_way(ws: Path, way: str, path: str) -> None:
    (ws / ".env").write_text("secret")
    (ws / "way").symlink_to(".")
    (ws / "other-name").symlink_to("way/.env")
    root = OpenRoot(Root(ws))
    before = descriptors(ws)
    with pytest.raises(SandboxError, match="may hold secrets"):
        root.open_to_read(path, "shown")
    assert descriptors(ws) == before
    root.open_to_read("way/src/foo.py", "shown").close()
