"""Our end of the programs that fork for each request: one for each process of ours, started with its first command."""

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from pathlib import Path

from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.processes.launcher import REQUEST_LENGTH
from forge_tools.sandbox.processes.trees import EXECUTION, INSTANCE, SHELL

LAUNCHER = str(Path(__file__).with_name("launcher.py"))

UMASK = 0o022
"""What commands start with."""

_TRIES = 4
_PATIENCE = 5.0  # seconds for the program to take a request, or to end


class Forker:
    """Keeps a program ready that takes requests and forks for each. Safe from many threads; a forked child makes its own.

    The program is Python with `arguments`, started when it is needed; its standard input is the socket on which each request
    comes as one byte with handles, the first of them a control socket on which the rest follows. At the end of file it ends.
    """

    def __init__(self, arguments: Sequence[str], environment: Callable[[], dict[str, str]]) -> None:
        self._arguments = arguments
        self._environment = environment
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self.pid = 0
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def request(self, handles: Sequence[int], fields: Sequence[str]) -> socket.socket:
        """Send a request and return our end of its control socket.

        Raises:
            OSError: the program cannot be started, or takes no request.
        """
        for _ in range(_TRIES - 1):
            # Somebody killed it on the way. Of a request that is not whole nothing comes, so that there may be another.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                return self._request(handles, fields)
        return self._request(handles, fields)

    def close(self) -> None:
        """End the program, and with it the commands of a `Spawner`."""
        with self._lock:
            self._stop()

    def _request(self, handles: Sequence[int], fields: Sequence[str]) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._ask([theirs.fileno(), *handles])
            _send(ours, fields)
        except BaseException:
            ours.close()
            raise
        return ours

    def _ask(self, handles: list[int]) -> None:
        with self._lock:
            requests = self._requests or Context().run(self._launch)  # it is not the body's that needs it first
            try:
                socket.send_fds(requests, [b"."], handles)
            except (BrokenPipeError, ConnectionResetError):
                self._stop()  # the next request gets a new one
                raise

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        environment = self._environment()
        marks = [f"{name}={environment[name]}" for name in (INSTANCE, SHELL) if name in environment]
        with theirs:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", *self._arguments, *marks],  # its environment is closed to others
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=(),
            )
        self._requests = ours
        return ours

    def _stop(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None
            _reap(self.pid)

    def _forget(self) -> None:
        # Only the handle: the program is our parent's child, and must see the end of file when our parent ends.
        self._lock = threading.Lock()
        if self._requests is not None:
            self._requests.close()
            self._requests = None


class Spawner(Forker):
    """Starts commands that end with us."""

    def __init__(self) -> None:
        super().__init__([LAUNCHER, "--serve"], _launcher_environment)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: int,
        streams: tuple[int, int, int],
        grace: float,
    ) -> socket.socket:
        """Start `command` in `folder` and return its control socket: status lines come out, closing it ends the tree.

        Raises:
            OSError: the launcher cannot be started, or takes no request.
        """
        fields = [str(grace), str(UMASK), str(len(command)), *command, *(f"{k}={v}" for k, v in environment.items())]
        return self.request([folder, *streams], fields)


def _send(control: socket.socket, fields: Sequence[str]) -> None:
    request = b"\0".join(os.fsencode(field) for field in fields)
    control.settimeout(_PATIENCE)
    control.sendall(REQUEST_LENGTH.pack(len(request)) + request)


def _launcher_environment() -> dict[str, str]:
    environment = child_environment()
    environment.pop(EXECUTION, None)  # it outlives the body that needs it first
    return environment


def _reap(pid: int) -> None:
    """Wait for a program that has to end; one that does not is killed, and what it forked ends by itself."""
    deadline = time.monotonic() + _PATIENCE
    with contextlib.suppress(ChildProcessError):  # somebody else in this process reaps every child
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)


SPAWNER = Spawner()
"""The one of this process."""
