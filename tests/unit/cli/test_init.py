"""The project that `init` creates: what is written, and that it works unchanged."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.cli import main
from forge_tools.cli.init import TEST, TOOL
from tests.migrated import migrated


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("mytools", None)
    yield tmp_path
    sys.modules.pop("mytools", None)


def run(*words: str) -> int:
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


def test_the_tool_runs_and_its_test_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init") == 0
    assert run("run", "--local", "shout", "text=hello") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "HELLO!"

    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    assert run("init") == 0
    assert (
        folder / "pyproject.toml"
    ).read_text() == '[project]\nname = "mine"\n\n[tool.forge-tools]\ntools = ["mytools"]\n'
    (folder / "mytools.py").write_text("mine")

    assert run("init") == 78
    assert "mytools.py exists already. Name another folder: forge-tools init FOLDER" in capsys.readouterr().err
    assert (folder / "mytools.py").read_text() == "mine"
    assert run("init", "another") == 0
    assert (folder / "another" / "test_mytools.py").exists()


def test_a_pyproject_stays_the_same_file_byte_for_byte(folder: Path) -> None:
    mine, file, link = b"[project]\r\nname = 'mine'\r\n", folder / "pyproject.toml", folder / "link"
    file.write_bytes(mine)
    link.hardlink_to(file)
    (folder / "pyproject.toml.new").write_text("mine")
    assert run("init") == 0
    assert file.samefile(link)
    assert file.read_bytes() == mine + b'\n[tool.forge-tools]\ntools = ["mytools"]\n'
    assert (folder / "pyproject.toml.new").read_text() == "mine"


def test_a_link_to_a_file_that_does_not_exist_yet_is_not_written_through(folder: Path) -> None:
    (folder / "mytools.py").symlink_to("elsewhere.py")
    assert run("init") == 1
    assert [one.name for one in folder.iterdir()] == ["mytools.py"]


def test_the_command_that_leads_to_the_folder_can_be_copied(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", "my tools") == 0
    assert "\n  cd 'my tools'\n" in capsys.readouterr().out


def test_what_is_not_there_is_told_with_the_database(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = f"sqlite:///{folder / 'forge.db'}"
    monkeypatch.setenv("FORGE_DATABASE_URL", database)
    migrated(database)

    assert run("show", "0198c0de-0000-7000-8000-000000000000") == 1
    assert f"The database is {database}" in "".join(capsys.readouterr().err.split("\n"))


@pytest.mark.parametrize("most", [0, 50, len(TOOL) + 10, len(TEST) + 10, len(TEST) + 40])
def test_a_disk_that_takes_no_more_is_said_with_the_folder_and_keeps_nothing_half_written(
    folder: Path, capsys: pytest.CaptureFixture[str], most: int
) -> None:
    mine = b"[project]\nname = 'mine'\n" + b"#" * len(TEST)
    (folder / "pyproject.toml").write_bytes(mine)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        assert run("init", str(folder)) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert capsys.readouterr().err == f"Error: {folder}: File too large.\n"
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == {"pyproject.toml": mine}
