"""Namespaces, as root and not: what is shown is there, nothing else is, and nothing outlives their first process."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_tools.sandbox.processes.trees import adopt_orphans
from forge_tools.sandbox.walls import namespaces, seccomp
from forge_tools.sandbox.walls.cgroups import LIMITS
from forge_tools.sandbox.walls.namespaces import HOST, NONE
from forge_tools.sandbox.walls.privileges import checked, gain_nothing
from forge_tools.sandbox.walls.probe import given
from tests.walled import NOBODY, in_child

SYSTEM = ("ro:/usr", "ln:/bin", "ln:/lib", "ln:/lib64", "ro:/etc")
EVERYBODY = pytest.mark.parametrize("uid", [0, NOBODY] if os.getuid() == 0 else [os.getuid()])


def held(what: object) -> str:
    """What is seen where the machine has namespaces; elsewhere they are refused."""
    return given().no_namespaces.rpartition(": ")[2] or str(what)


def seen(work: Callable[[], object], *shown: str, uid: int = 0, network: str = NONE) -> str:
    """What `work` returns or raises as the first process of namespaces in which that is shown."""

    def answer(write: int) -> None:
        try:
            namespaces.furnish([*SYSTEM, *shown])
            namespaces.close_off()
            said = str(work())
        except OSError as error:
            said = errno.errorcode[error.errno or 0]
        os.write(write, said.encode())
        os._exit(0)

    def outside() -> str:
        adopt_orphans()
        read, write = os.pipe()
        if namespaces.fork(network=network) == 0:
            answer(write)
        os.close(write)
        with os.fdopen(read) as answered:
            return answered.read()

    return in_child(outside, uid=uid)


def listening() -> socket.socket:
    """A socket on the loopback; encodings are not looked for there, which `create_server` needs."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server


def connect(server: socket.socket) -> None:
    with socket.socket() as line:
        line.connect(server.getsockname())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for one in (tmp_path, *list(tmp_path.parents)[:-2]):
        if one.stat().st_uid == os.getuid():
            one.chmod(0o777)
    for path in (tmp_path / "in", tmp_path / "in/keys", tmp_path / "out"):
        path.mkdir()
        (path / "file").write_text(path.name)
        path.chmod(0o777)
    return tmp_path


@EVERYBODY
def test_it_is_the_first_process_and_sees_no_other(uid: int) -> None:
    assert seen(lambda: [name for name in os.listdir("/proc") if name.isdigit()], uid=uid) == held(["1"])
    assert seen(lambda: (os.getpid(), os.geteuid(), os.getegid()), uid=uid) == held((1, uid, uid))


@EVERYBODY
def test_what_is_shown_is_there_and_nothing_else(folder: Path, uid: int) -> None:
    def work() -> object:
        (folder / "in/new").write_text("new")
        return (folder / "in/file").read_text(), (folder / "out").exists(), Path("/root").exists()

    assert seen(work, f"rw:{folder}/in", uid=uid) == held(("in", False, False))
    assert (folder / "in/new").exists() is not bool(given().no_namespaces)


@EVERYBODY
def test_what_is_shown_to_be_read_is_not_written_to(folder: Path, uid: int) -> None:
    assert seen((folder / "in/new").touch, f"ro:{folder}/in", uid=uid) == held("EROFS")
    assert seen(Path("/usr/new").touch, uid=uid) == held("EROFS")


@EVERYBODY
def test_what_is_hidden_is_empty_and_stays_where_it_is(folder: Path, uid: int) -> None:
    shown = (f"rw:{folder}/in", f"hide:{folder}/in/keys", f"hide:{folder}/in/file")
    keys = folder / "in/keys"

    assert seen(lambda: (os.listdir(keys), (folder / "in/file").read_text()), *shown, uid=uid) == held(([], ""))
    assert seen(lambda: keys.rename(folder / "in/moved"), *shown, uid=uid) == held("EBUSY")
    assert seen(lambda: checked("umount2", str(keys).encode(), 2), *shown, uid=uid) == held("EPERM")


@EVERYBODY
def test_its_temporary_files_are_its_own(folder: Path, uid: int) -> None:
    def work() -> object:
        for place in ("/tmp", "/var/tmp", "/dev/shm", "/home/me"):
            Path(place, folder.name).write_text("mine")
        return os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize

    assert seen(work, "own:/home/me", uid=uid) == held(1 << 30)
    assert not Path("/tmp", folder.name).exists()


@EVERYBODY
@pytest.mark.parametrize("network", [HOST, NONE])
def test_a_port_of_the_machine_is_there_with_its_network_alone(uid: int, network: str) -> None:
    with listening() as server:

        def work() -> str:
            with listening() as own:  # its own loopback is up
                connect(own)
            connect(server)
            return "connected"

        assert seen(work, uid=uid, network=network) == held("connected" if network == HOST else "ECONNREFUSED")


@EVERYBODY
def test_it_makes_no_namespaces_and_mounts_nothing(uid: int) -> None:
    for name, arguments in (("unshare", (1 << 28,)), ("mount", (b"x", b"/tmp", b"tmpfs", 0, None))):
        assert seen(lambda name=name, arguments=arguments: checked(name, *arguments), uid=uid) == held("EPERM")


@EVERYBODY
def test_it_has_as_many_processes_as_it_may(uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMITS, "0 310 ")
    if uid == 0 and not namespaces.limits_processes():
        return  # the kernel does not count those of root

    def bomb() -> None:
        for _ in range(400):
            os.posix_spawn("/bin/sleep", ["sleep", "61"], {})

    assert seen(bomb, uid=uid) == held("EAGAIN")


def test_root_keeps_its_rights_over_files_that_are_shown_but_none_over_the_machine(folder: Path) -> None:
    def work() -> object:
        os.chown(folder / "in/file", 12_345, 12_345)
        return (folder / "in/file").stat().st_uid

    is_root = os.getuid() == 0
    assert seen(work, f"rw:{folder}/in") == held(12_345 if is_root else "EINVAL")
    assert seen(lambda: Path("/proc/sys/kernel/core_pattern").write_text("core")) == held(
        "EROFS" if is_root else "EACCES"
    )


def test_who_goes_to_a_folder_gets_that_one_or_none(folder: Path) -> None:
    place, other = (os.open(folder / name, os.O_RDONLY) for name in ("in", "out"))
    shown = f"rw:{folder}/in"

    assert seen(lambda: namespaces.go_to(f"{folder}/in", place) or os.getcwd(), shown) == held(folder / "in")
    assert seen(lambda: namespaces.go_to(f"{folder}/in", other), shown) == held("ESTALE")
    assert seen(lambda: namespaces.go_to(f"{folder}/out", other), shown) == held("ENOENT")


@pytest.mark.parametrize("refused", ["unshare", "mount", "pivot_root"])
def test_what_the_machine_refuses_is_raised_and_nothing_runs(refused: str) -> None:
    def restricted() -> str:
        gain_nothing()
        seccomp.refuse([refused])
        adopt_orphans()
        pid = namespaces.fork(network=HOST)
        if pid == 0:
            code = 0
            try:
                namespaces.furnish(SYSTEM)
            except OSError as error:
                code = error.errno or 0
            os._exit(code)
        return errno.errorcode[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]

    assert in_child(restricted, uid=NOBODY) == held("EPERM")
