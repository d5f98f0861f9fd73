"""What the kernel refuses to a process, and what goes on."""

import asyncio
import ctypes
import errno
import multiprocessing
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from forge_tools.sandbox.walls import seccomp
from forge_tools.sandbox.walls.privileges import checked, gain_nothing
from tests.walled import NOBODY, in_child

MACHINE = os.uname().machine
NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)


def is_refused(number: int, argument: int) -> bool:
    try:
        checked("syscall", number, argument, 0, 0, 0, 0)
    except PermissionError as error:
        return error.errno == errno.EPERM
    except OSError:
        return False
    return False


def walled(
    work: Callable[[], object], *, families: frozenset[int] | tuple[int, ...] | None = (), uid: int | None = NOBODY
) -> str:
    def inside() -> object:
        gain_nothing()
        seccomp.refuse(families=families)
        return work()

    return in_child(inside, uid=uid)


def test_what_no_body_needs_is_refused() -> None:
    def passed() -> list[str]:
        return [name for name in seccomp.FORBIDDEN if not is_refused(seccomp.number_of(name), 0)]

    assert len(seccomp.FORBIDDEN) > 25
    assert walled(passed) == "[]"


def test_no_namespace_is_made_by_clone() -> None:
    def passed() -> list[int]:
        return [flag for flag in NAMESPACES if not is_refused(seccomp.number_of("clone"), flag | 17)]

    assert walled(passed) == "[]"


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16, 17, 40])
def test_sockets_of_a_family_that_was_not_asked_for_are_refused(family: int) -> None:
    assert walled(lambda: socket.socket(family, socket.SOCK_RAW if family == 16 else socket.SOCK_STREAM)) == "EACCES"


def test_with_the_network_those_of_the_internet_are_made_and_others_are_not() -> None:
    def families() -> str:
        made = []
        for family, kind in (
            (socket.AF_INET, socket.SOCK_STREAM),
            (socket.AF_INET, socket.SOCK_DGRAM),
            (socket.AF_INET6, socket.SOCK_STREAM),
            (16, socket.SOCK_RAW),
            (socket.AF_UNIX, socket.SOCK_STREAM),
        ):
            try:
                socket.socket(family, kind).close()
                made.append(int(family))
            except PermissionError:
                pass
        return str(made)

    assert walled(families, families=seccomp.INTERNET) == "[2, 2, 10, 16]"


def test_without_a_word_of_families_every_socket_is_made() -> None:
    assert walled(lambda: socket.socket(socket.AF_UNIX).close(), families=None) == "None"


def test_threads_processes_pairs_and_loops_work_on() -> None:
    def work() -> str:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        left, right = socket.socketpair()
        left.send(b"x")
        assert right.recv(1) == b"x"

        async def shell() -> int:
            return await (await asyncio.create_subprocess_exec("/bin/true")).wait()

        with multiprocessing.get_context("fork").Pool(2) as pool:
            return f"{asyncio.run(shell())} {subprocess.call('/bin/true')} {pool.map(abs, [-1, -2])}"

    assert walled(work, uid=None) == "0 0 [1, 2]"


def test_what_is_executed_is_refused_too() -> None:
    command = ["/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9"]

    said = walled(lambda: subprocess.run(command, capture_output=True, text=True, check=False).stderr)

    assert "Permission denied" in said


def test_the_compatible_numbers_of_x32_are_no_way_around() -> None:
    if MACHINE != "x86_64":
        assert MACHINE == "aarch64"
        return
    assert walled(lambda: checked("syscall", 0x40000000 | 521, 0, 0, 0, 0)) == "ENOSYS"


def test_a_machine_whose_numbers_are_unknown_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="mips"))

    with pytest.raises(OSError, match="mips") as raised:
        seccomp.refuse()

    assert raised.value.errno == errno.ENOSYS


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_of_the_filter_stays_inside_it(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(os, "uname", type("U", (), {"machine": machine}))
    program = seccomp.program.__wrapped__(seccomp.FORBIDDEN, seccomp.INTERNET, False, errno.EPERM)
    steps = [ctypes.c_uint64.from_buffer_copy(program, at).value for at in range(0, len(program), 8)]

    for at, step in enumerate(steps):
        assert at + 1 + max(step >> 16 & 0xFF, step >> 24 & 0xFF) < len(steps) or step & 0xFFFF == 0x06
