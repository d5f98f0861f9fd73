"""The walls of one process: its workspace and what it imports are open, the rest of the machine is not."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_tools.sandbox.walls.profile import Profile, worn
from tests.walled import in_child


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    for name in ("workspace", "docs", "home", "scratch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path


def walled(place: Path, work: Callable[[], object], *, network: bool = False) -> str:
    def inside() -> object:
        Profile((str(place / "docs"),), (str(place / "workspace"),), network).put_on(str(place / "scratch"))
        return work()

    return in_child(inside)


def test_workspace_and_scratch_are_written_and_what_is_read_only_is_read(place: Path) -> None:
    assert walled(place, (place / "docs/file").read_text) == "docs"
    assert walled(place, lambda: (place / "docs/new").write_text("")) == "EACCES"
    for name in ("workspace", "scratch"):
        assert walled(place, lambda name=name: (place / name / "new").write_text("new")) == "3"


def test_the_key_beside_the_workspace_is_closed_to_python_and_to_programs(place: Path) -> None:
    key = place / "home/file"

    assert walled(place, key.read_text) == "EACCES"
    assert walled(place, lambda: subprocess.call(["/bin/cat", key], stderr=subprocess.DEVNULL)) == "1"


def test_python_starts_and_imports_inside(place: Path) -> None:
    code = "import decimal, sqlite3, zoneinfo; print(zoneinfo.ZoneInfo('UTC'))"

    assert walled(place, lambda: subprocess.check_output([sys.executable, "-c", code], text=True).strip()) == "UTC"


def test_the_environment_of_a_process_outside_is_closed_to_root_too(place: Path) -> None:
    assert walled(place, Path(f"/proc/{os.getpid()}/environ").read_bytes) in {"EACCES", "EPERM"}


def test_the_network_is_there_for_who_asked_for_it(place: Path) -> None:
    assert walled(place, lambda: socket.socket(socket.AF_INET)) == "EACCES"
    assert walled(place, lambda: socket.socket(socket.AF_INET).close(), network=True) == "None"


def test_a_process_knows_the_walls_that_it_wears(place: Path) -> None:
    assert worn() is None
    assert walled(place, lambda: worn() is not None) == "True"
