"""Programs are found where they were installed, never where a caller could put one."""

import os
import stat
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.sandbox.processes import commands


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What is found once is kept for the process: find nothing of others, and leave nothing to them."""
    forget()
    yield
    forget()


def forget() -> None:
    commands.find_beside_python.cache_clear()
    commands.find_shell.cache_clear()


def test_ripgrep_is_the_one_installed_for_this_python() -> None:
    assert commands.find_beside_python("rg") == str(Path(sysconfig.get_path("scripts")) / "rg")


def test_a_program_in_the_path_alone_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil").write_text("#!/bin/sh\n")
    (tmp_path / "evil").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert commands.find_beside_python("evil") is None


def test_a_program_beside_the_interpreter_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert commands.find_beside_python("tool") is None
    commands.find_beside_python.cache_clear()
    (tmp_path / "tool").chmod(stat.S_IRWXU)
    assert commands.find_beside_python("tool") == str(tmp_path / "tool")


def test_the_shell_reads_no_start_up_files() -> None:
    shell, *options = commands.find_shell()
    assert Path(shell).is_absolute()
    assert options == ["--noprofile", "--norc"]


def test_without_bash_there_is_sh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: "bash" not in path)
    assert commands.find_shell() == ["/bin/sh"]
