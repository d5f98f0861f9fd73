"""Landlock by each version of its interface: what lies below the paths is open, and nothing else is."""

import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_tools.sandbox.walls import landlock
from forge_tools.sandbox.walls.privileges import checked
from tests.walled import NOBODY, in_child

VERSIONS = range(1, landlock.abi() + 1)


def needs(version: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(landlock.abi() < version, reason=f"this kernel has no Landlock ABI {version}")


def walled(
    work: Callable[[], object], *, read: tuple[Path, ...] = (), write: tuple[Path, ...] = (), **options: int
) -> str:
    def inside() -> object:
        rules = landlock.Ruleset(network=bool(options.get("network")), version=options.get("version"))
        rules.allow(map(str, read), map(str, write))
        rules.enclose()
        rules.close()
        return work()

    return in_child(inside, uid=NOBODY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for one in (tmp_path, *list(tmp_path.parents)[:-2]):
        if one.stat().st_uid == os.getuid():
            one.chmod(0o777)
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    for name in ("in", "out"):
        (tmp_path / name).chmod(0o777)
        (tmp_path / name / "file").write_text(name)
        (tmp_path / name / "file").chmod(0o666)
    return tmp_path


@pytest.mark.parametrize("version", VERSIONS)
def test_what_lies_outside_is_closed_and_what_lies_inside_is_open(folder: Path, version: int) -> None:
    assert walled((folder / "out/file").read_text, write=(folder / "in",), version=version) == "EACCES"
    assert walled((folder / "in/file").read_text, write=(folder / "in",), version=version) == "in"
    assert walled(lambda: (folder / "in/new").write_text("new"), write=(folder / "in",), version=version) == "3"


@pytest.mark.parametrize("version", VERSIONS)
def test_what_may_be_read_is_not_written(folder: Path, version: int) -> None:
    assert walled((folder / "in/file").read_text, read=(folder / "in",), version=version) == "in"
    assert walled(lambda: (folder / "in/file").write_text(""), read=(folder / "in",), version=version) == "EACCES"
    assert walled((folder / "in/new").mkdir, read=(folder / "in",), version=version) == "EACCES"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", ["in", "out"])
def test_nothing_is_shortened_that_may_not_be_written(folder: Path, version: int, place: str) -> None:
    file = folder / place / "file"

    def shorten(flags: int) -> Callable[[], object]:
        return lambda: os.open(file, flags | os.O_TRUNC)

    def open_by_another_call() -> None:
        how = struct.pack("QQQ", os.O_TRUNC, 0, 0)
        checked("syscall", 437, -100, bytes(file), how, len(how))

    ways = (shorten(os.O_RDONLY), shorten(os.O_ACCMODE), shorten(os.O_RDWR), lambda: os.truncate(file, 0))
    refusals = [walled(way, read=(folder / "in",), version=version) for way in (*ways, open_by_another_call)]

    assert set(refusals) <= {"EACCES", "ENOSYS"}
    assert file.read_text() == place


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_open_to_be_written_is_shortened_there(folder: Path, version: int) -> None:
    def shorten() -> tuple[int, int]:
        with (folder / "in/file").open("r+") as file:
            return file.truncate(1), (folder / "in/file").open("w").truncate()

    assert walled(shorten, write=(folder / "in",), version=version) == "(1, 0)"


def test_a_link_opens_what_it_leads_to_only_where_that_is_open(folder: Path) -> None:
    (folder / "in/link").symlink_to(folder / "out/file")
    assert walled((folder / "in/link").read_text, write=(folder / "in",)) == "EACCES"
    (folder / "root").symlink_to(folder / "in")
    assert walled((folder / "root/file").read_text, write=(folder / "root",)) == "in"


def test_a_file_alone_can_be_opened_up_and_a_path_that_is_not_there_is_left_out(folder: Path) -> None:
    open_ = (folder / "in/file", folder / "nothing")
    assert walled((folder / "in/file").read_text, read=open_) == "in"
    assert walled((folder / "out/file").read_text, read=open_) == "EACCES"


def test_a_folder_renames_into_another_that_is_open(folder: Path) -> None:
    both = (folder / "in", folder / "out")
    assert walled(lambda: os.rename(folder / "in/file", folder / "out/moved"), write=both) == "None"


def test_threads_and_programs_that_are_started_later_are_walled_too(folder: Path) -> None:
    def on_a_thread() -> object:
        found: list[object] = []

        def look() -> None:
            try:
                found.append((folder / "out/file").read_text())
            except PermissionError:
                found.append("closed")

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return found[0], os.spawnv(os.P_WAIT, "/bin/cat", ["cat", str(folder / "out/file")])

    assert walled(on_a_thread, read=(Path("/usr"), Path("/bin"), Path("/lib"), Path("/lib64"))) == "('closed', 1)"


@needs(4)
def test_tcp_is_open_with_the_network_alone(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert walled(lambda: socket.socket().connect(address), network=0) == "EACCES"
        assert walled(lambda: socket.socket().connect(address), network=1) == "None"


@needs(6)
def test_a_process_outside_gets_no_signal_and_an_abstract_socket_no_connection() -> None:
    me, name = os.getpid(), f"\0forge-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as line:
        server.bind(name)
        server.listen()
        assert in_child(lambda: (landlock.Ruleset(network=True).enclose(), os.kill(me, 0))) == "EPERM"
        assert walled(lambda: line.connect(name), network=1) == "EPERM"


def test_the_seventeenth_layer_is_refused() -> None:
    def layers() -> int:
        rules = landlock.Ruleset(network=True)
        for number in range(17):
            try:
                rules.enclose()
            except OSError as error:
                return number * 1000 + (error.errno or 0)
        return -1

    assert in_child(layers) == "16007", "16 layers, then E2BIG"
