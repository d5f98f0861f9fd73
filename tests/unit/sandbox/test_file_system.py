"""The file system that tools get: the workspace with six methods, or a replacement by a test."""

from pathlib import Path
from typing import Annotated
from unittest.mock import create_autospec

import pytest

from forge_tools.errors import SandboxError
from forge_tools.model import ExecutionContext
from forge_tools.sandbox.files import Files, files
from forge_tools.testing import InlineExecutor
from forge_tools.tool import Depends, tool

OwnFiles = Annotated[Files, Depends(files, per="call")]


@tool
def shout(path: str, files: OwnFiles) -> list[str]:
    """Write a file louder."""
    files.write(f"loud/{path}", files.read(path).upper())
    return files.readdir("loud")


@pytest.fixture
def own(tmp_path: Path) -> Files:
    (tmp_path / "ws").mkdir()
    (tmp_path / "secret").write_text("outside")
    return files(ExecutionContext(working_dir=str(tmp_path / "ws")))


def test_a_tool_has_the_files_of_its_workspace() -> None:
    with InlineExecutor(shout, files={"a.txt": "hello"}) as tools:
        assert tools.run("shout", path="a.txt").output == ["a.txt"]
        assert (tools.workspace / "loud/a.txt").read_text() == "HELLO"
        assert tools.run("shout", path="../secret").error_code == "PATH_OUTSIDE_WORKSPACE"


def test_a_test_puts_others_in_their_place() -> None:
    fake = create_autospec(Files, instance=True)
    fake.read.return_value, fake.readdir.return_value = b"hello", ["a.txt"]
    with InlineExecutor(shout, overrides={files: lambda: fake}) as tools:
        assert tools.run("shout", path="a.txt").output == ["a.txt"]
        assert list(tools.workspace.iterdir()) == []
    fake.write.assert_called_once_with("loud/a.txt", b"HELLO")


def test_what_is_written_is_there_until_it_is_deleted(own: Files) -> None:
    own.write("a/b", b"one")
    own.write("a/b", b"two")

    assert (own.read("a/b"), own.stat("a/b").st_size, own.readdir(), own.readdir("a")) == (b"two", 3, ["a"], ["b"])
    assert (own.exists("a"), own.exists("a/b"), own.exists("a/c")) == (True, True, False)
    own.unlink("a/b")
    assert own.readdir("a") == []


def test_what_cannot_be_done_is_refused_and_leaves_nothing(own: Files) -> None:
    own.write("file", b"x")
    for work, code in (
        (lambda: own.read("gone"), "FILE_NOT_FOUND"),
        (lambda: own.unlink("gone"), "FILE_NOT_FOUND"),
        (lambda: own.readdir("file"), "NOT_A_DIRECTORY"),
        (lambda: own.write("../secret", b"x"), "PATH_OUTSIDE_WORKSPACE"),
        (lambda: own.exists("../secret"), "PATH_OUTSIDE_WORKSPACE"),
        (lambda: own.write("new/.env", b"x"), "PATH_PROTECTED"),
    ):
        with pytest.raises(SandboxError) as refused:
            work()
        assert refused.value.code == code
    assert own.readdir() == ["file"]
