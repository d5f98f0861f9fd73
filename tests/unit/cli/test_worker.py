"""What `forge-tools worker` becomes, and what it refuses to become."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import forge_tools
from forge_tools.cli.worker import require_own_workers, worker_argv
from forge_tools.errors import ConfigurationError

OURS = Path(forge_tools.__file__).parents[1]


def worker(folder: Path, *words: str, python: str = "") -> "subprocess.CompletedProcess[str]":
    """Run `forge-tools worker` in a folder, found by PYTHONPATH."""
    environment = {**os.environ, "PYTHONPATH": f"{python}{os.pathsep}{OURS}" if python else str(OURS)}
    return subprocess.run(
        [sys.executable, "-P", "-m", "forge_tools.cli", "worker", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def a_namesake(folder: Path) -> Path:
    (folder / "workers").mkdir()
    (folder / "workers" / "__init__.py").write_text("raise SystemExit('the wrong workers')")
    return folder


def test_the_arguments_are_passed_through() -> None:
    assert worker_argv(["--lane", "async"]) == [sys.executable, "-P", "-m", "workers", "--lane", "async"]


def test_help_is_the_workers_own(tmp_path: Path) -> None:
    done = worker(tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert "--lane" in done.stdout


def test_a_wrong_option_is_the_workers_to_refuse(tmp_path: Path) -> None:
    done = worker(tmp_path, "--lane", "nowhere")
    assert done.returncode == 2
    assert "invalid choice: 'nowhere'" in done.stderr


def test_a_workers_folder_of_the_users_own_is_harmless(tmp_path: Path) -> None:
    done = worker(a_namesake(tmp_path), "--help")
    assert done.returncode == 0, done.stderr


def test_a_namesake_that_comes_first_is_refused_by_its_path(tmp_path: Path) -> None:
    done = worker(tmp_path, "--help", python=str(a_namesake(tmp_path)))
    assert done.returncode == 78
    assert f"{tmp_path / 'workers'}, which comes before" in done.stderr
    assert "PYTHONPATH" in done.stderr


def test_a_single_file_may_be_the_namesake(tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text("")
    done = worker(tmp_path, "--help", python=str(tmp_path))
    assert done.returncode == 78
    assert str(tmp_path / "workers.py") in done.stderr


def test_a_missing_package_says_to_install_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(ConfigurationError, match="finds no package `workers`"):
        require_own_workers()
