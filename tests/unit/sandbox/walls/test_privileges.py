"""What a process keeps from another process of the same non-root user."""

import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forge_tools.sandbox.walls.privileges import drop_capabilities, gain_nothing, harden, is_closed, open_up
from tests.walled import NOBODY, in_child


@contextmanager
def a_secret_holder(*steps: Callable[[], None]) -> Iterator[int]:
    """A process of an ordinary user that takes these steps and waits."""
    read, write = os.pipe()
    ended, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(end)
            if os.getuid() == 0:
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            for step in steps:
                step()
            os.write(write, b".")
            os.read(ended, 1)
        finally:
            os._exit(0)
    os.read(read, 1)
    try:
        yield pid
    finally:
        os.close(end)
        os.waitpid(pid, 0)
        for fd in (read, write, ended):
            os.close(fd)


def test_a_hardened_process_shows_its_user_neither_environment_nor_descriptors() -> None:
    with a_secret_holder(harden) as pid:
        assert in_child(lambda: Path(f"/proc/{pid}/environ").read_bytes(), uid=NOBODY) == "EACCES"
        assert in_child(lambda: os.readlink(f"/proc/{pid}/fd/0"), uid=NOBODY) == "EACCES"
        assert in_child(Path(f"/proc/{pid}/mem").read_bytes, uid=NOBODY) == "EACCES"


def test_nor_does_it_to_a_child_without_capabilities_whoever_both_are() -> None:
    def environment_of_the_parent() -> bytes:
        drop_capabilities()
        return Path(f"/proc/{os.getppid()}/environ").read_bytes()

    def parent() -> str:
        harden()
        return in_child(environment_of_the_parent)

    assert in_child(parent) in {"EACCES", "EPERM"}


def test_one_that_opened_up_again_shows_them() -> None:
    with a_secret_holder(harden, open_up) as pid:
        assert "PATH" in in_child(lambda: Path(f"/proc/{pid}/environ").read_bytes(), uid=NOBODY)


def test_a_hardened_process_leaves_no_core_and_says_that_it_is_closed() -> None:
    assert in_child(lambda: (harden(), is_closed(), resource.getrlimit(resource.RLIMIT_CORE))[1:]) == "(True, (0, 0))"


def test_a_program_executed_by_root_gets_no_capability_back() -> None:
    def effective() -> str:
        gain_nothing()
        drop_capabilities()
        said = subprocess.run(["/bin/cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
        return next(line.split()[1] for line in said.splitlines() if line.startswith("CapEff"))

    assert int(in_child(effective), 16) == 0


def test_threads_of_one_that_dropped_them_have_none_either() -> None:
    def other() -> str:
        drop_capabilities()
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(Path("/proc/thread-self/status").read_text()))
        thread.start()
        thread.join()
        return next(line.split()[1] for line in found[0].splitlines() if line.startswith("CapEff"))

    assert int(in_child(other), 16) == 0
