"""Opens and reads for an event loop: what might wait is left to a thread."""

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths import confinement
from forge_tools.sandbox.paths.workspace import Workspace
from tests.descriptors import descriptors
from tests.waiting import drop_from_memory, wait_until

CONTENT = b"some text\n" * 1000


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """There are reads that wait: only a disk has them."""
    return disk_path


@pytest.fixture
def quick(tmp_path: Path) -> Workspace:
    """A workspace with a file of 10 kB, on a file system that was met."""
    (tmp_path / "f").write_bytes(CONTENT)
    (tmp_path / "folder").mkdir()
    workspace = Workspace(tmp_path)
    with workspace.open_file("f") as file:
        confinement.meet(file.fd, file.stat.st_dev)
        if not confinement.offered[file.stat.st_dev]:
            pytest.skip("the file system of the temporary folder offers no reads that never wait")
    return workspace


def read(workspace: Workspace, path: str, limit: int = 1 << 20) -> bytes | None:
    file = workspace.open_cached(path)
    if file is None:
        return None
    with file:
        return file.read_at_once(limit)


def test_a_file_in_memory_is_read_whole(quick: Workspace) -> None:
    assert read(quick, "f") == CONTENT
    assert read(quick, "f", len(CONTENT)) == CONTENT


def test_a_file_over_the_limit_is_not_read(quick: Workspace, tmp_path: Path) -> None:
    assert read(quick, "f", len(CONTENT) - 1) is None
    os.truncate(tmp_path / "f", 1 << 40)
    assert read(quick, "f") is None


@pytest.mark.parametrize("dropped_from", [0, 2 << 20], ids=["all", "half"])
def test_a_file_that_is_not_all_in_memory_is_not_read(quick: Workspace, tmp_path: Path, dropped_from: int) -> None:
    if not os.major(tmp_path.stat().st_dev):
        pytest.skip("the temporary folder is on no disk")
    large = b"x" * (4 << 20)
    (tmp_path / "f").write_bytes(large)
    assert read(quick, "f", len(large)) == large

    def is_left() -> bool:
        drop_from_memory(tmp_path / "f", dropped_from)
        return read(quick, "f", len(large)) is None

    wait_until(is_left)  # a disk may be quicker than the question whether it has to be asked


def listen(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, listen])
def test_what_is_not_a_regular_file_is_not_opened(
    quick: Workspace, tmp_path: Path, make: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make("special")
    before = descriptors(tmp_path)
    assert quick.open_cached("special") is None
    assert descriptors(tmp_path) == before


def test_a_device_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "offered", dict.fromkeys([os.stat("/dev").st_dev], True))
    for name in ("zero", "null", "tty"):
        assert Workspace(Path("/dev")).open_cached(name) is None


@pytest.mark.parametrize("path", ["link", "out", "by/f", "folder/../f", "no-such", "f/", "f/x", ".", "folder"])
def test_what_is_not_a_plain_path_to_a_file_is_left_to_the_thread(quick: Workspace, tmp_path: Path, path: str) -> None:
    for name, target in {"link": "f", "out": "/etc/passwd", "by": "."}.items():
        (tmp_path / name).symlink_to(target)
    assert quick.open_cached(path) is None


def test_what_is_protected_or_outside_is_refused_all_the_same(quick: Workspace, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=1")
    for path in (".env", "/etc/passwd", "\0"):
        with pytest.raises(SandboxError) as at_once:
            quick.open_cached(path)
        with pytest.raises(SandboxError) as later:
            quick.open_file(path)
        assert (str(at_once.value), at_once.value.code) == (str(later.value), later.value.code)


def test_a_file_swapped_or_changed_after_its_opening_is_read_as_it_was_or_not_at_all(
    quick: Workspace, tmp_path: Path
) -> None:
    swapped, grown = quick.open_cached("f"), quick.open_cached("f")
    assert swapped is not None
    assert grown is not None
    with swapped, grown:
        (tmp_path / "new").write_bytes(b"other")
        (tmp_path / "new").replace(tmp_path / "f")
        assert swapped.read_at_once(1 << 20) == CONTENT
        for size in (len(CONTENT) + 1, len(CONTENT) - 1):
            os.truncate(f"/proc/self/fd/{grown.fd}", size)
            assert grown.read_at_once(1 << 20) is None


def test_a_mount_inside_is_left_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    mount = Path("/dev/shm")
    if not mount.is_mount():
        pytest.skip("/dev/shm is no mount here")
    monkeypatch.setattr(confinement, "offered", dict.fromkeys([mount.stat().st_dev, os.stat("/").st_dev], True))
    with tempfile.NamedTemporaryFile(dir=mount) as file:
        inside = Workspace(mount).open_cached(Path(file.name).name)
        assert inside is not None
        inside.close()
        assert Workspace(Path("/")).open_cached(file.name[1:]) is None


def test_a_name_that_is_not_in_memory_is_left_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has looked for this one before: the kernel makes the names of a process when somebody does."""
    monkeypatch.setattr(confinement, "offered", dict.fromkeys([os.stat("/proc").st_dev], True))
    workspace, path = Workspace(Path("/proc")), f"{os.getpid()}/personality"
    assert workspace.open_cached(path) is None
    workspace.open_file(path).close()


def test_a_file_system_is_asked_nothing_before_it_was_met(quick: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "offered", {})
    assert quick.open_cached("f") is None


def test_one_that_may_wait_for_somebody_is_never_asked() -> None:
    """As FUSE and NFS: proc too has no reads that never wait."""
    workspace = Workspace(Path("/proc"))
    with workspace.open_file("version") as file:
        confinement.meet(file.fd, file.stat.st_dev)
        assert not confinement.offered[file.stat.st_dev]
    assert workspace.open_cached("version") is None


def test_without_a_kernel_that_confines_nothing_is_opened(quick: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "kernel_confines", lambda: False)
    assert quick.open_cached("f") is None
