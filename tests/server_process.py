"""A server as a child process that cannot outlive the test process which started it."""

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

START_SECONDS = 120.0
STOP_SECONDS = 10.0

# Becomes the server: drops to the user, asks the kernel for a signal when the test process dies, and execs.
# The signal is asked for after the change of user, because that change forgets it.
_BECOME = """
import os, sys, ctypes
parent, signal, uid, gid, *argv = sys.argv[1:]
if int(uid) != os.getuid():
    os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(signal))
if os.getppid() != int(parent):
    sys.exit("the test process is gone")
os.execv(argv[0], argv)
"""


class ServiceMissingError(RuntimeError):
    """A server that the tests need cannot be found or started; the sentence says what to install or set."""


class ServerProcess:
    """A server as a child process: started, waited for, stopped by pid.

    `death_signal` is what it gets when the test process dies without stopping it.
    """

    def __init__(self, name: str, log: Path, *, user: pwd.struct_passwd | None = None, death_signal: int) -> None:
        self.name = name
        self.log = log
        self._user = user
        self._death_signal = death_signal
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, argv: list[str], is_ready: Callable[[], bool]) -> None:
        """Start it and wait until it serves.

        Call this from the main thread: the kernel ends the server with the *thread* that started it.
        """
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                become(argv, self._user, self._death_signal), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        try:
            self._wait_until(is_ready)
        except BaseException:
            self.kill()
            raise

    def stop(self, stop_signal: int = signal.SIGTERM) -> None:
        """End it in good order, or by force when that takes too long."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(stop_signal)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End it without warning, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _wait_until(self, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            if not self.is_running or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-2000:]
                raise ServiceMissingError(
                    f"{self.name} did not start within {START_SECONDS:.0f} s. Its last words:\n{tail}"
                )
            time.sleep(0.01)


def become(argv: list[str], user: pwd.struct_passwd | None, death_signal: int) -> list[str]:
    """The command line that turns into `argv`, as `user`, and ends with the process that starts it."""
    uid, gid = (user.pw_uid, user.pw_gid) if user else (os.getuid(), os.getgid())
    facts = [str(int(fact)) for fact in (os.getpid(), death_signal, uid, gid)]
    return [sys.executable, "-I", "-S", "-c", _BECOME, *facts, *argv]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def children_with(word: str, pid: int | None = None) -> list[psutil.Process]:
    """The children of a process, by default of this one, that have this word in their command; the dead have none."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.Error):
            if word in " ".join(child.cmdline()):
                found.append(child)
    return found
