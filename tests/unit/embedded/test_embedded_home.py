"""The folder of a stack: whose it is, and who holds it."""

import errno
import os
import pwd
import socket
import stat
from pathlib import Path

import pytest

from forge_tools.embedded import home as home_module
from forge_tools.embedded import valkey
from forge_tools.embedded.home import HomeLock, open_home, prepare_socket, private_folder, stack_holder
from forge_tools.errors import StackError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return open_home(tmp_path / "home")


def take(home: Path) -> HomeLock:
    return HomeLock(home).acquire()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_home_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        home = open_home(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [mode(home), mode(home / "logs"), mode(home / "valkey")] == [0o700, 0o700, 0o700]


def test_a_home_of_ours_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "home" / "forge.db").touch()
    assert mode(open_home(tmp_path / "home")) == 0o700


def test_a_strange_folder_that_is_open_to_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "home" / "letters").touch()
    with pytest.raises(
        StackError, match=r"is open to other users \(mode drwxr-xr-x\).* Set FORGE_HOME to a folder of its own or"
    ):
        open_home(tmp_path / "home")
    assert mode(tmp_path / "home") == 0o755


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o1777)
    with pytest.raises(StackError, match="is open to other users"):
        open_home(tmp_path / "home")


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    if os.getuid() == 0:
        other = tmp_path / "home"
        other.mkdir()
        os.chown(other, pwd.getpwnam("nobody").pw_uid, -1)
        owner = "nobody"
    else:
        other, owner = Path("/usr"), "root"
    with pytest.raises(StackError, match=f"{other} belongs to user {owner}, but this is user .*set FORGE_HOME"):
        open_home(other)


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(StackError, match="home is not a folder"):
        open_home(tmp_path / "home")
    with pytest.raises(StackError, match="is not a folder"):
        open_home(tmp_path / "home" / "below")


def test_a_folder_that_cannot_be_made_is_named() -> None:
    with pytest.raises(StackError, match=r"/proc/forge.* cannot be used: .*HOME: set one of them, or FORGE_HOME"):
        open_home(Path("/proc/forge"))


def test_one_process_holds_the_folder_and_is_named(home: Path) -> None:
    assert stack_holder(home) is None
    lock = take(home)
    holder = stack_holder(home)
    assert holder is not None
    assert holder.pid == os.getpid()
    with pytest.raises(StackError, match=f"already runs in {home}: pid {os.getpid()} on .*, since 20.*set FORGE_HOME"):
        take(home)
    lock.release()
    assert stack_holder(home) is None
    take(home).release()


def test_a_holder_that_has_not_yet_written_its_name_is_told_of(home: Path) -> None:
    lock = take(home)
    (home / "lock").write_text("")
    with pytest.raises(StackError, match="A stack is already starting in"):
        take(home)
    lock.release()


def test_the_folder_is_not_free_while_the_old_server_holds_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey, "end_leftover", lambda _: "Valkey (pid 7)")
    monkeypatch.setattr(home_module, "LEFTOVER_SECONDS", 0.0)
    lock = take(home)
    inherited = os.dup(lock.server_fd)
    lock.release()
    assert stack_holder(home) is None
    with pytest.raises(StackError, match=r"Valkey \(pid 7\) of an earlier stack still runs in"):
        take(home)
    os.close(inherited)
    take(home).release()


def test_a_lock_that_is_a_link_is_not_followed(home: Path, tmp_path: Path) -> None:
    (home / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StackError, match="lock cannot be used"):
        take(home)
    assert not (tmp_path / "precious").exists()


def test_a_stale_socket_is_removed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "v.sock"))
    prepare_socket(tmp_path / "v.sock", tmp_path)
    prepare_socket(tmp_path / "v.sock", tmp_path)
    assert not (tmp_path / "v.sock").exists()


def test_a_private_folder_is_neither_a_link_nor_open(tmp_path: Path) -> None:
    private_folder(tmp_path / "run")
    private_folder(tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (tmp_path / "run2").mkdir(mode=0o750)
    for folder in (tmp_path / "link", tmp_path / "run2"):
        with pytest.raises(StackError, match=r"must be a folder that user .* owns and nobody else may enter"):
            private_folder(folder)


def test_whoever_asks_learns_that_the_stack_serves(home: Path) -> None:
    lock = take(home)
    before = stack_holder(home)
    lock.declare_ready()
    after = stack_holder(home)
    lock.release()
    lock.declare_ready()  # a thread may say so when the stack has just stopped

    assert (before and before.is_ready, after and after.is_ready) == (False, True)
    again = take(home)
    restarted = stack_holder(home)
    assert restarted is not None
    assert not restarted.is_ready
    again.release()


def test_a_disk_that_is_full_is_named_with_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(StackError, match=f"{home} cannot be used: No space left on device"):
        take(home)


def test_a_home_on_a_read_only_file_system_is_not_told_to_change_its_mode(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StackError, match=r"Its file system is read-only: set FORGE_HOME to another folder"):
        open_home(home)
    home.chmod(0o500)
    with pytest.raises(StackError, match=f"Run chmod 700 {home}, or set FORGE_HOME"):
        open_home(home)
