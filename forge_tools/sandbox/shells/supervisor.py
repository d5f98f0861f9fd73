"""The program that keeps shells: forks a supervisor for each, which stays until nothing of its shell is left.

Started as Python with -I -S and an environment of its own. A supervisor is in no session and waits for no socket of whoever
asked for it, so that it outlives them; it is reached through the folder of its shell alone.
"""

import base64
import contextlib
import errno
import fcntl
import os
import signal
import socket
import time
from collections.abc import Sequence

from forge_tools.sandbox.launcher import Status, keep_private, receive, spawn, status_of
from forge_tools.sandbox.shells.layout import LEASE, ORDERS, STATUS, kernel_id, replace, restate
from forge_tools.sandbox.shells.segments import Segments
from forge_tools.sandbox.trees import Ending, Process, Signals, adopt_orphans, descendants, reap, start_ticks
from forge_tools.sandbox.withholding import Withholding

_CHUNK = 1 << 20
_PIPE_BYTES = 1 << 20
_DRAIN_SECONDS = 0.1  # for what somebody outside the tree may still hold open
_MAX_LOOK_SECONDS = 60.0
_ASKS = {b"TERM": signal.SIGTERM, b"INT": signal.SIGINT, b"KILL": signal.SIGKILL}
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STOP_GRACE = 2.0
_F_SETPIPE_SZ = 1031


class Shell:
    """One shell from its start to its end."""

    def __init__(self, folder: int, *, lease_seconds: float, spool_bytes: int, withheld: Sequence[bytes] = ()) -> None:
        self._folder = folder
        self._spool = Segments(folder, spool_bytes)
        self._withholding = Withholding(withheld)
        self._orders = os.open(ORDERS, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        self._lease = _Lease(folder, lease_seconds)
        self._output = -1
        self._child = 0
        self._status: Status | None = None
        self._ending: Ending | None = None
        self._facts: dict[str, object] = {}

    def start(self, command: list[bytes], environment: dict[bytes, bytes], stdin: int) -> None:
        """Start the command in the current folder.

        Raises:
            OSError: it cannot be started.
        """
        pid = os.getpid()
        self._facts = {"pid": pid, "start_ticks": start_ticks(pid), "kernel": kernel_id()}
        replace(self._folder, STATUS, self._facts)  # or there is no room for it, and a shell that nobody would see
        self._output, write = os.pipe()
        with contextlib.suppress(OSError):  # more than a user may have; the usual size will do
            fcntl.fcntl(write, _F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(self._output, False)
        self._began = time.monotonic()
        self._child = spawn(command, environment, (stdin, write, write))
        os.close(write)
        self._facts |= {"state": "running", "child": self._child, "child_ticks": start_ticks(self._child)}
        self._tell()

    def supervise(self, signals: Signals) -> None:
        """Stay until nothing of the shell is left, then say how it ended."""
        seconds: float | None = self._lease.every
        while self._reap() and seconds is not None:
            ready, received = signals.wait(seconds, self._output, self._orders)
            if self._output in ready:
                self._pump()
            if self._orders in ready:
                self._obey()
            if any(number in _STOPS for number in received):
                self._end(signal.SIGTERM, _STOP_GRACE, "stop")
            if self._lease.is_over():
                self._end(signal.SIGTERM, _STOP_GRACE, "lease")
            seconds = self._step()
        self._drain(signals)
        self._conclude()

    def _step(self) -> float | None:
        if self._ending is None:
            return self._lease.every
        return self._ending.step(self._tree(), self._child, is_over=self._status is not None)

    def _pump(self) -> bool:
        """Read once; say whether there may be more."""
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return True
        self._spool.write(self._withholding.feed(data))
        if not data:
            os.close(self._output)
            self._output = -1
        return bool(data)

    def _drain(self, signals: Signals) -> None:
        patience = time.monotonic() + _DRAIN_SECONDS
        while self._output >= 0 and self._pump() and (remaining := patience - time.monotonic()) > 0:
            signals.wait(remaining, self._output)

    def _obey(self) -> None:
        """Each order is a line: a signal, and the seconds after which what still runs is killed."""
        with contextlib.suppress(OSError):
            for order in os.read(self._orders, 4096).splitlines():
                with contextlib.suppress(
                    ValueError, KeyError
                ):  # nobody but our user can write there; he may be careless
                    name, grace = order.split()
                    self._end(_ASKS[name], float(grace), "kill")

    def _end(self, number: int, grace: float, by: str) -> None:
        deadline = time.monotonic() + (0.0 if number == signal.SIGKILL else grace)
        if self._ending is not None:
            self._ending.again(deadline, number)
            return
        self._ending = Ending(deadline, number)
        self._asked = time.monotonic()
        self._facts |= {"ended_by": by, "processes": len(self._tree())}

    def _tree(self) -> list[Process]:
        return list(descendants(os.getpid(), with_shells=True))

    def _reap(self) -> bool:
        """Collect every ended child, adopted ones too; say whether any child is left."""

        def ended(pid: int, code: int) -> None:
            if pid == self._child and self._status is None:
                self._status = status_of(code)
                self._facts["signal" if self._status.kind == "signal" else "exit_code"] = self._status.number
                self._tell()

        return reap(ended)

    def _conclude(self) -> None:
        self._spool.write(self._withholding.rest())
        now = time.monotonic()
        self._facts |= {
            "state": "exited" if self._ending is None else "killed",
            "size": self._spool.size,
            "ended_at": time.time(),
            "runtime_s": round(now - self._began, 3),
        }
        if self._ending is not None:
            self._facts["took_s"] = round(now - self._asked, 3)
        if left := len(self._tree()):
            self._facts["left"] = left
        self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(OSError):  # the folder is gone: the shell goes on all the same
            restate(self._folder, STATUS, self._facts)


class _Lease:
    """Over when nobody has touched the file for so long, by the clock that nobody sets; or when there is no file any more."""

    def __init__(self, folder: int, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self.every = min(_MAX_LOOK_SECONDS, seconds / 4)
        self._seen = 0
        self._renewed = self._looked = time.monotonic()

    def is_over(self) -> bool:
        now = time.monotonic()
        if now - self._looked < self.every and self._seen:
            return False
        self._looked = now
        try:
            touched = os.stat(LEASE, dir_fd=self._folder, follow_symlinks=False).st_mtime_ns
        except OSError:
            return True
        if touched != self._seen:
            self._seen, self._renewed = touched, now
        return now - self._renewed > self._seconds


def serve() -> None:
    """Fork a supervisor for each request until the end of file.

    A request is one byte with four handles: control socket, working directory, folder of the shell, standard input. The rest
    follows over its control socket, between NULs: seconds of the lease, bytes of the spool, the umask, the numbers of
    arguments and of texts that nobody may see, the arguments, these texts in base64, the environment. The answer is a line: `started 0` or `error ERRNO`.
    """
    os.closerange(3, 1 << 20)
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors need no one to wait for them
    while True:
        data, handles, _, _ = socket.recv_fds(requests, 1, 4)
        if not data:
            return
        with contextlib.suppress(OSError):  # no process to be had: the requester sees its control socket close
            if os.fork() == 0:
                try:
                    requests.close()
                    _keep_shell(*handles)
                finally:
                    os._exit(0)
        for handle in handles:
            os.close(handle)


def _keep_shell(control: int, place: int, folder: int, stdin: int) -> None:
    os.setsid()
    keep_private(control, place, folder, stdin)
    fields = receive(control).split(b"\0")
    lease, limit, umask, words, texts = float(fields[0]), *map(int, fields[1:5])
    command, rest = fields[5 : 5 + words], fields[5 + words :]
    withheld, environment = map(base64.b64decode, rest[:texts]), dict(field.split(b"=", 1) for field in rest[texts:])
    adopt_orphans()
    signals = Signals(*_STOPS, signal.SIGCHLD)
    try:
        shell = Shell(folder, lease_seconds=lease, spool_bytes=limit, withheld=list(withheld))
        os.fchdir(place)
        os.umask(umask)
        shell.start(command, environment, stdin)
    except OSError as error:
        os.write(control, f"error {error.errno or errno.EINVAL}\n".encode())
        return
    os.chdir("/")  # whoever wants to unmount or remove its folder has nothing to do with us
    with contextlib.suppress(OSError):  # whoever asked may be gone; the shell is started all the same
        os.write(control, b"started 0\n")
    for handle in (control, place, stdin):
        os.close(handle)
    shell.supervise(signals)
