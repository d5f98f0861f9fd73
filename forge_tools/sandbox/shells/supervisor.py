"""The program that keeps shells: forks a supervisor for each, which stays until nothing of its shell is left.

Started as Python with -I -S and its own environment. A supervisor belongs to no session and waits for no socket of its
requester, so that it outlives both; it is reached only through the folder of its shell.
"""

import base64
import errno
import fcntl
import json
import math
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

from forge_tools.sandbox.processes.endings import Ending
from forge_tools.sandbox.processes.launcher import Status, keep_private, open_requests, receive, spawn, status_of
from forge_tools.sandbox.processes.streams import StreamScrubber
from forge_tools.sandbox.processes.trees import SHELL, Process, Signals, adopt_orphans, descendants, reap, start_ticks
from forge_tools.sandbox.walls import namespaces
from forge_tools.sandbox.walls.cgroups import REST, Cgroup, Limits
from forge_tools.sandbox.walls.commands import NAMESPACE, Enclosure, enclosure
from forge_tools.sandbox.walls.privileges import harden

# The files in the folder of a shell:
RECORD = "record.json"  # the request, written once by the requester
STATUS = "status.json"  # the state, replaced whole by the supervisor
LEASE = "lease"  # touched to renew it
ORDERS = "orders"  # a pipe that the supervisor reads lines from
SEGMENT = ".out"  # the ending of output files; the rest of the name is the position where each begins

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a file of the folder is opened: a link, or a pipe without a writer, must not fool us."""

WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC
_SEGMENTS = 8
_CHUNK = 1 << 20
_PIPE_BYTES = 1 << 20
_DRAIN_SECONDS = 0.1  # for output through handles held open outside the tree
_MAX_POLL_SECONDS = 60.0
_ASKS = {b"TERM": signal.SIGTERM, b"INT": signal.SIGINT, b"KILL": signal.SIGKILL}
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STOP_GRACE = 2.0
_F_SETPIPE_SZ = 1031


def replace(folder: int, name: str, content: Mapping[str, object]) -> None:
    """Replace a file atomically, so that readers see either the old or the new one."""
    new = f"{name}.{os.getpid()}"
    try:
        with os.fdopen(os.open(new, WRITE, 0o600, dir_fd=folder), "w") as file:
            json.dump(content, file)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise


def restate(folder: int, content: Mapping[str, object]) -> None:
    """Replace the status, or rewrite it in place, which works even on a full disk.

    It grows by at least a byte, so that a changed size shows a new version.
    """
    try:
        replace(folder, STATUS, content)
    except OSError:
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(STATUS, flags, dir_fd=folder), "wb") as file:
            file.write(json.dumps(content).encode().ljust(os.fstat(file.fileno()).st_size + 1))


@cache
def kernel_id() -> str:
    """Return the boot id of this host's kernel; empty if it has none."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


class Segments:
    """Keeps the head and the tail of a stream, `limit` bytes at most. `size` is what was written, kept or not.

    A full disk loses the bytes that do not fit; it never blocks the shell, which would wait for its reader.
    """

    def __init__(self, folder: int, limit: int) -> None:
        self._folder = folder
        self._each = max(1, limit // _SEGMENTS)
        self._names: list[str] = []
        self._fd = -1
        self._room = 0
        self.size = 0

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                if self._room == 0:
                    self._next()
                count = os.write(self._fd, left[: self._room])
            except OSError:
                self._give_up()
                self.size += len(left)
                return
            self.size += count
            self._room -= count
            left = left[count:]

    def close(self) -> None:
        """Close the file; later output gets another one."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._room = -1, 0

    def _next(self) -> None:
        self.close()
        if len(self._names) == _SEGMENTS:  # first, since the next one may need the room
            self._remove(1)
        name = f"{self.size:015d}{SEGMENT}"
        self._fd = os.open(name, _NEW, 0o600, dir_fd=self._folder)
        self._room = self._each
        self._names.append(name)

    def _give_up(self) -> None:
        """Start a new file for what follows. One without any content does not count, or it would cost another."""
        if self._fd >= 0 and self._room == self._each:
            self._remove(-1)
        self.close()

    def _remove(self, index: int) -> None:
        with suppress(OSError):
            os.unlink(self._names.pop(index), dir_fd=self._folder)


class Shell:
    """One shell from its start to its end."""

    def __init__(
        self,
        folder: int,
        *,
        lease_seconds: float,
        spool_bytes: int,
        withheld: Sequence[bytes] = (),
        numbers: namespaces.Numbers | None = None,
        group: Cgroup,
    ) -> None:
        """`numbers` are those of the machine, where the supervisor has others. `group` holds all but the supervisor."""
        self._numbers, self._group = numbers, group
        self._folder = folder
        self._spool = Segments(folder, spool_bytes)
        self._stream = StreamScrubber(withheld)
        # With a writer of its own, the pipe never comes to an end of file.
        self._orders = os.open(ORDERS, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        self._lease = _Lease(folder, lease_seconds)
        self._output = -1
        self._child = 0
        self._status: Status | None = None
        self._ending: Ending | None = None
        self._facts: dict[str, object] = {}

    def start(self, command: list[bytes], environment: dict[bytes, bytes], stdin: int, around: Enclosure) -> None:
        """Start the command in the current folder, behind what is `around` it."""
        pid = os.getpid() if self._numbers is None else self._numbers.own
        self._facts = {"pid": pid, "start_ticks": start_ticks(os.getpid()), "kernel": kernel_id()}
        replace(self._folder, STATUS, self._facts)  # else there is no room, and the shell would be invisible
        self._output, write = os.pipe()
        with suppress(OSError):  # more than a user may have; the default size will do
            fcntl.fcntl(write, _F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(self._output, False)
        self._began = time.monotonic()
        self._child = around.start(lambda: spawn(command, environment, (stdin, write, write)), stdin)
        self._group.leave(REST)
        os.close(write)
        child = self._child if self._numbers is None else self._numbers.of_first_child()
        self._facts |= {"state": "running", "child": child, "child_ticks": start_ticks(self._child)}
        self._tell()

    def supervise(self, signals: Signals) -> None:
        """Stay until nothing of the shell is left, then record how it ended."""
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
            if self._ending is not None:
                seconds = self._ending.step(self._tree(), self._child, is_over=self._status is not None)
        patience = time.monotonic() + _DRAIN_SECONDS
        while self._output >= 0 and self._pump() and (remaining := patience - time.monotonic()) > 0:
            signals.wait(remaining, self._output)
        self._conclude()

    def _pump(self) -> bool:
        """Read once; return whether there may be more."""
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return True
        self._spool.write(self._stream.feed(data))
        if not data:
            os.close(self._output)
            self._output = -1
        return bool(data)

    def _obey(self) -> None:
        """Execute the orders. Each is a line: a signal, and the seconds after which what still runs is killed."""
        with suppress(OSError):
            for order in os.read(self._orders, 4096).splitlines():
                with suppress(ValueError, KeyError):  # only our user can write there, perhaps carelessly
                    name, grace = order.split()
                    if not math.isnan(seconds := float(grace)):  # a deadline that never comes, and that none precedes
                        self._end(_ASKS[name], seconds, "kill")

    def _end(self, number: int, grace: float, by: str) -> None:
        deadline = time.monotonic() + (0.0 if number == signal.SIGKILL else grace)
        if self._ending is not None:
            self._ending.again(deadline, number)
            return
        self._ending = Ending(deadline, number, group=self._group)
        self._asked = time.monotonic()
        self._facts |= {"ended_by": by, "processes": len(self._tree())}

    def _tree(self) -> list[Process]:
        return descendants(os.getpid(), with_shells=True)

    def _reap(self) -> bool:
        is_any_left, code = reap(self._child)
        if code is not None and self._status is None:  # the number may belong to another process by now
            self._status = status_of(code)
            self._facts["signal" if self._status.kind == "signal" else "exit_code"] = self._status.number
            self._tell()
        return is_any_left

    def _conclude(self) -> None:
        self._spool.write(self._stream.rest())
        if self._group.ran_out_of_memory():
            self._spool.write(f"\n[{Limits.given().exceeded_by('The command')}]\n".encode())
        self._group.end()
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
        with suppress(OSError):  # the folder is gone: the shell continues anyway
            restate(self._folder, self._facts)


class _Lease:
    """Expires when nobody has touched the file for that long, by a clock that nobody sets; or when the file is gone."""

    def __init__(self, folder: int, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self.every = min(_MAX_POLL_SECONDS, seconds / 4)
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

    A request is one byte with four handles: control socket, working directory, folder of the shell, standard input. The
    rest follows over its control socket, as `packed` lists: the seconds of the lease, bytes of the spool and umask; the
    command; secret texts in base64; words on its walls, none or the path of the folder and those of `walls/commands.py`;
    the environment. The answer is a line: `started 0` or `error ERRNO`.
    """
    harden()
    with suppress(OSError):  # there are no groups
        Limits.given().rest().enter(os.getpid())
    requests = open_requests()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are then reaped by the kernel
    while True:
        data, handles, _, _ = socket.recv_fds(requests, 1, 4)
        if not data:
            return
        with suppress(OSError):  # no process available: the requester sees its control socket close
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
    (lease, limit, umask), command, texts, words, variables = receive(control)
    withheld, environment = list(map(base64.b64decode, texts)), dict(field.split(b"=", 1) for field in variables)
    walls = list(map(os.fsdecode, words))
    around, is_apart = enclosure(walls[1:]), walls[1:2] == [NAMESPACE]
    try:
        outside, inside = socket.socketpair()
        if is_apart and namespaces.fork(network=walls[2]):  # the supervisor goes on in them
            for handle in (inside.detach(), control, place, folder, stdin):
                os.close(handle)
            _serve_way_out(walls[2], outside)
            return
        outside.close()
        adopt_orphans()
        signals = Signals(*_STOPS, signal.SIGCHLD)
        numbers = namespaces.Numbers() if is_apart else None
        group = Limits.given().of_shell(os.fsdecode(environment[SHELL.encode()]))
        shell = Shell(
            folder, lease_seconds=float(lease), spool_bytes=int(limit), withheld=withheld, numbers=numbers, group=group
        )
        around.prepare(group)
        around.give_way_out(inside.fileno())
        if not (is_apart and namespaces.has_proxy(walls[2])):  # else it serves until this is closed
            inside.close()
        around.enter(place, walls[:1])
        os.umask(int(umask))
        shell.start(command, environment, stdin, around)
    except OSError as error:
        os.write(control, f"error {error.errno or errno.EINVAL}\n".encode())
        around.leave()
        return
    os.chdir("/")  # so that it can be unmounted or removed regardless of us
    with suppress(OSError):  # the requester may be gone; the shell has started anyway
        os.write(control, b"started 0\n")
    for handle in (control, place, stdin):
        os.close(handle)
    shell.supervise(signals)
    around.leave()


def _serve_way_out(network: str, line: socket.socket) -> None:
    """Be the proxy of a shell in namespaces, if its network has one, until the other end of the line is closed."""
    _, listeners, _, _ = socket.recv_fds(line, 64, 1)
    if listeners:
        # Not earlier: asyncio and what the proxy needs take a third of a second, which no other shell has to spend.
        from forge_tools.sandbox.web.egress import serve_while_open

        serve_while_open(network, socket.socket(fileno=listeners[0]), line)
