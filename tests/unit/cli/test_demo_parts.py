"""The demo's files and claims."""

import os
import subprocess
from pathlib import Path

import pytest

import forge_tools
from examples.demo.samples import MAX_BYTES, WANTED, sample_files
from examples.demo.scenario import is_alive
from examples.demo.stage import BrokenPromiseError, Stage
from forge_tools.cli.face import Face, Output


def test_small_text_files_of_the_folder_are_taken(tmp_path: Path) -> None:
    for number in range(WANTED + 5):
        (tmp_path / f"{number:02}.txt").write_text("hello\n")
    workspace, files = sample_files(tmp_path)
    assert workspace == tmp_path
    assert files == [f"{number:02}.txt" for number in range(WANTED)]


def test_what_is_hidden_binary_empty_large_or_linked_is_left(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt", ".hidden"):
        (tmp_path / name).write_text("hello\n")
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "latin").write_bytes(b"\xe9")
    (tmp_path / "large").write_text("x" * (MAX_BYTES + 1))
    (tmp_path / "link").symlink_to("a.txt")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "d.js").write_text("hello\n")
    assert sample_files(tmp_path)[1] == ["a.txt", "b.txt", "c.txt"]


def test_an_empty_folder_is_replaced_by_the_packages_own_sources(tmp_path: Path) -> None:
    workspace, files = sample_files(tmp_path)
    assert workspace == Path(forge_tools.__file__).parent
    assert len(files) == WANTED


def test_a_claim_that_does_not_hold_ends_the_demo() -> None:
    stage = Stage(Face(output=Output.JSON))
    stage.section("Promises")
    stage.claim(True, "this holds")
    with pytest.raises(BrokenPromiseError, match=r"Not as promised: that holds\. Found: nothing of the kind"):
        stage.claim(False, "that holds")
    assert stage.sections == [{"title": "Promises", "claims": ["this holds"]}]


def test_a_process_is_alive_until_it_ends() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert is_alive(child.pid)
    assert not is_alive(child.pid)
    assert is_alive(1)
