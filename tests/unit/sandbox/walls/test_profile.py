"""The walls of one process: its workspace and what it imports are open, the rest of the machine is not."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import forge_tools
from forge_tools.sandbox.walls import profile
from forge_tools.sandbox.walls.profile import Profile, applied, needed_to_run, shared_memory
from tests.walled import in_child


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("workspace", "docs", "home", "scratch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path


def walled(place: Path, work: Callable[[], object], *, network: bool = False) -> str:
    def inside() -> object:
        read = (*needed_to_run([str(place)]), str(place / "docs"))
        Profile(read, (str(place / "workspace"),), network).apply(str(place / "scratch"))
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


def test_what_is_imported_is_open_but_no_folder_in_which_something_closed_lies(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["", "/", str(place), str(place / "docs"), str(place / "workspace")])

    opened = needed_to_run([str(place / "workspace/data"), str(place / "home")])

    assert set(map(str, place.glob("*"))) & {*opened} == {str(place / "docs")}
    assert not {"/", str(place), os.getcwd()} & {*opened} - {str(Path(forge_tools.__file__).parents[1])}


def test_what_lies_in_an_open_folder_is_not_opened_again() -> None:
    opened = needed_to_run(())

    assert "/usr" in opened
    assert not [(path, other) for path in opened for other in opened if path.startswith(f"{other}/")]


def test_keys_in_a_folder_of_the_system_stay_closed_and_the_rest_of_it_is_open(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "SYSTEM", (str(place),))

    opened = needed_to_run([str(place / "home/file"), str(place / "docs")])

    assert {one for one in opened if one.startswith(str(place))} == {
        str(place / name) for name in ("workspace", "scratch")
    }


def test_shared_memory_is_open_unless_a_workspace_lies_there() -> None:
    assert shared_memory(["/home/ada"]) == ("/dev/shm",)
    assert shared_memory(["/home/ada", "/dev/shm/work"]) == ()


def test_a_process_knows_the_walls_that_it_wears(place: Path) -> None:
    assert applied() is None
    assert walled(place, lambda: applied() is not None) == "True"
