"""Runs commands whose whole process tree ends with their owner. A separate script: it loads little.

Started as `python -I -S launcher.py --serve` with the number and words of the walls around commands, 0 for none. Supervisors
are forked: a millisecond, not twenty, and one is kept ready for the next request.

The tree is ended (TERM, the grace, KILL) when the owner's end of the control socket closes, when a SIGTERM was forwarded and
the grace has passed, and when the command exits and leaves descendants behind. Lines on the control socket: `listening 0`
with the socket of the proxy, if the network has one; `starting PID` of the supervisor; `error ERRNO` if it could not start;
`memory 0` if the kernel ended it for lack of memory; `exit CODE` or `signal NUMBER` as soon as the command is over;
`leftovers COUNT` if it left any behind; `gone 0`, then end of file, when nothing of the tree is left.
"""

import contextlib
import errno
import os
import signal
import socket
import struct
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, count

if __name__ == "__main__":  # -I omits even its own package from the path
    sys.path.append(__file__.rpartition("/forge_tools/")[0])

from forge_tools.sandbox.processes.endings import Ending, kill, kill_all
from forge_tools.sandbox.processes.trees import Process, Signals, adopt_orphans, descendants, reap
from forge_tools.sandbox.walls.cgroups import Cgroup, Limits
from forge_tools.sandbox.walls.commands import Enclosure, enclosure, fork
from forge_tools.sandbox.walls.privileges import harden, prctl

Start = Callable[[list[bytes], dict[bytes, bytes], Sequence[int]], int]  # command, environment, streams: the pid

_LENGTH = struct.Struct(">I")
_NO_GROUP, _NO_LIMITS = Cgroup(), Limits()
_SET_PDEATHSIG = 1
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DEFAULTED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}  # reset for a command, whatever we ignore
_STRAGGLERS = 0.1  # seconds for what a command leaves behind to end by itself
_EMPTY_SEARCHES = 3  # in a row, after which the tree counts as gone if shells stay behind


class Status(namedtuple("Status", ("kind", "number"))):  # importing typing takes milliseconds
    """One line on a control socket."""

    __slots__ = ()
    kind: str
    number: int


class Supervisor:
    """Starts one command and stays until its tree is gone. `control` is a handle whose end of file ends the tree.

    What the owner writes there are numbers of signals for the command, one a byte. `group` holds the command and what it started.

    Below a worker there may be shells that outlive it; below the command of a tool (`spares_shells` False) there are
    none, whatever a process there claims.
    """

    def __init__(self, control: int, grace: float, group: Cgroup, *, spares_shells: bool) -> None:
        self._control = control
        self._grace = grace
        self._group = group
        self._spares_shells = spares_shells
        self._child = 0
        self._status: Status | None = None

    def run(self, signals: Signals, start: Callable[[], int], handles: Sequence[int]) -> None:
        """Let `start` return the command's pid, close the `handles` that only the command needs, supervise to the end."""
        self._tell(Status("starting", os.getpid()))
        try:
            self._child = start()
        except OSError as error:
            self._tell(Status("error", error.errno or errno.EINVAL))
            return
        for handle in handles:
            os.close(handle)
        deadline = self._watch(signals)
        if deadline is None:
            self._count_leftovers(signals)
            deadline = time.monotonic() + self._grace
        self._end_tree(signals, deadline)
        self._tell(Status("gone", 0))

    def _watch(self, signals: Signals) -> float | None:
        """Wait until the command is over (None), or the tree has to end: return the time by which it must."""
        deadline: float | None = None
        while self._reap() and self._status is None:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                break
            ready, received = signals.wait(remaining, self._control)
            if ready:
                sent = b""
                with contextlib.suppress(OSError):
                    sent = os.read(self._control, 4096)
                if not sent:  # the owner has closed its end
                    return time.monotonic() + self._grace
                received += sent
            for number in received:
                if number in _FORWARDED:
                    kill(self._child, number)
                if number in (signal.SIGTERM, signal.SIGHUP) and deadline is None:
                    deadline = time.monotonic() + self._grace
        return deadline

    def _count_leftovers(self, signals: Signals) -> None:
        patience = time.monotonic() + _STRAGGLERS
        while self._reap() and (remaining := patience - time.monotonic()) > 0:
            signals.wait(remaining)
        if self._reap() and (tree := self._tree()):
            self._tell(Status("leftovers", len(tree)))

    def _end_tree(self, signals: Signals, deadline: float) -> None:
        ending = Ending(deadline, group=self._group)
        empty = 0
        while self._reap() and empty < _EMPTY_SEARCHES:
            tree = self._tree()
            seconds = ending.step(tree, self._child, is_over=self._status is not None)
            if seconds is None:
                return
            only_shells = self._spares_shells and not tree and bool(descendants(os.getpid(), with_shells=True))
            empty = empty + 1 if only_shells else 0
            signals.wait(0.005 if only_shells else seconds)

    def _tree(self) -> list[Process]:
        return descendants(os.getpid(), with_shells=not self._spares_shells)

    def _reap(self) -> bool:
        is_any_left, code = reap(self._child)
        if code is not None and self._status is None:  # the number may belong to another process by now
            if self._group.ran_out_of_memory():
                self._tell(Status("memory", 0))
            self._status = self._tell(status_of(code))
        return is_any_left

    def _tell(self, status: Status) -> Status:
        with contextlib.suppress(OSError):  # the owner may be gone; the tree must end anyway
            os.write(self._control, f"{status.kind} {status.number}\n".encode())
        return status


class Spare:
    """A supervisor forked in advance: copying this process takes longer than many a command, and so do its `walls`."""

    def __init__(
        self, walls: Sequence[str], start: Start, *private: int, group: Cgroup, spares_shells: bool = False
    ) -> None:
        """Fork it, or raise OSError; it closes the `private` handles, and starts its command with `start`."""
        self._ours, theirs = socket.socketpair()
        with theirs:
            self.pid, refusal = fork(walls)
            if self.pid == 0:
                try:
                    os.setpgid(0, 0)  # a command is in it until it has its own: killing that must spare the launcher
                    for handle in (self._ours.fileno(), *private):
                        os.close(handle)
                    _serve_next(theirs, enclosure(walls, refusal), start, group, spares_shells=spares_shells)
                finally:
                    os._exit(0)

    def take(self, handles: list[int]) -> bool:
        """Let it supervise the request of these handles, if any; False if somebody has killed it. An idle one ends."""
        with self._ours:
            try:
                return bool(handles) and socket.send_fds(self._ours, [b"."], handles) > 0
            except OSError:
                return False


def serve(walls: Sequence[str], start: Start, *, limits: Limits = _NO_LIMITS, spares_shells: bool = False) -> None:
    """Provide a supervisor for each request until the owner closes its end of the socket, and outlive them all.

    `limits` bound each command, by a group of its own if there are groups. `spares_shells`: as in `Supervisor`.

    A request is one byte with five handles: control socket, working directory, standard input, output and error. The
    rest follows over its control socket, as `packed` lists: the grace in seconds, the umask, the command, words on
    its walls, the environment.
    """
    adopt_orphans()
    requests, signals = open_requests(), Signals(signal.SIGCHLD)
    supervisors: dict[int, Cgroup] = {}
    numbers = count()
    spare = None
    is_open = True

    def another(*handles: int) -> Spare | None:
        """Fork one without the handles of a request; None if no process is available."""
        with contextlib.suppress(OSError):
            group = limits.group(f"{os.getpid()}-{next(numbers)}")
            spare = Spare(walls, start, requests.fileno(), *handles, group=group, spares_shells=spares_shells)
            supervisors[spare.pid] = group
            return spare
        return None

    while is_open or supervisors:
        has_request, _ = signals.wait(None, requests.fileno() if is_open else -1)
        _reap_supervisors(supervisors, with_shells=not spares_shells)
        if has_request:
            data, handles, _, _ = socket.recv_fds(requests, 1, 5)
            is_open = bool(data)
            is_taken = spare is not None and spare.take(handles)
            if is_open and not is_taken and (fresh := another(*handles)):
                fresh.take(handles)  # without one, the requester sees its control socket close
            for handle in handles:
                os.close(handle)
            spare = another() if is_open else None


def open_requests() -> socket.socket:
    """Return the socket of requests, which a program that takes them has as its standard input, and nothing else open."""
    os.closerange(3, 1 << 20)
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    return requests


def prepare_child(supervisor: int) -> None:
    """Prepare a forked process to be a command: the kernel kills it with its supervisor."""
    os.setsid()
    prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(127)
    for number in _DEFAULTED:
        signal.signal(number, signal.SIG_DFL)


def spawn(command: list[bytes], environment: dict[bytes, bytes], streams: Sequence[int]) -> int:
    """Start a command without copying this process, which is twice as fast; return its pid.

    The kernel does not kill it with us, but `serve` does.
    """
    # By hand, since posix_spawnp would search our own PATH instead of the command's.
    folders = environment.get(b"PATH", b"").split(b":")
    names = [command[0]] if b"/" in command[0] else [folder + b"/" + command[0] for folder in folders if folder]
    moves = [(os.POSIX_SPAWN_DUP2, stream, target) for target, stream in enumerate(streams)]
    missing = OSError(errno.ENOENT, "")
    for path in names:
        try:
            return os.posix_spawn(path, command, environment, file_actions=moves, setsid=True, setsigdef=_DEFAULTED)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            missing = error
    raise missing


def _serve_next(requests: socket.socket, walls: Enclosure, start: Start, group: Cgroup, *, spares_shells: bool) -> None:
    adopt_orphans()
    signals = Signals(*_FORWARDED, signal.SIGCHLD)
    walls.prepare(group)
    data, handles, _, _ = socket.recv_fds(requests, 1, 5)
    requests.close()
    signals.wait(0)  # earlier signals were not for the command
    if not data:
        return
    control, folder, *streams = handles
    keep_private(*handles)
    (grace,), (umask,), command, shown, variables = receive(control)
    environment = dict(field.split(b"=", 1) for field in variables)
    walls.give_way_out(control)

    def start_behind() -> int:
        walls.enter(folder, list(map(os.fsdecode, shown)))
        os.umask(int(umask))
        pid = walls.start(lambda: start(command, environment, streams), streams[0])
        group.leave()  # so that killing the group spares us
        return pid

    supervisor = Supervisor(control, float(grace), group, spares_shells=spares_shells)
    supervisor.run(signals, start_behind, (folder, *streams))
    walls.leave()


def keep_private(*handles: int) -> None:
    """Prevent commands from inheriting these handles."""
    for handle in handles:
        os.set_inheritable(handle, False)  # noqa: FBT003  the function takes no keyword


def packed(*lists: Sequence[str]) -> bytes:
    """Return a request as it is sent: its length; then, separated by NULs, the lengths of the lists and their items."""
    counts = ",".join(str(len(one)) for one in lists)
    request = b"\0".join(os.fsencode(field) for field in chain([counts], *lists))
    return _LENGTH.pack(len(request)) + request


def receive(control: int) -> list[list[bytes]]:
    """Read the lists of a request from its control socket; EOFError if the requester vanished before it sent them."""
    with os.fdopen(control, "rb", closefd=False) as stream:
        (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
        request = stream.read(length)
    if len(request) < length:
        raise EOFError
    counts, *fields = request.split(b"\0")
    rest = iter(fields)
    return [[next(rest) for _ in range(int(count))] for count in counts.split(b",")]


def _reap_supervisors(supervisors: dict[int, Cgroup], *, with_shells: bool) -> None:
    """Reap supervisors, and end the groups of their commands. If one was killed (its own command may do that), its tree becomes ours: end that too.

    One pass over the process table may miss children of an orphan that is just ending; they are ours once it is reaped,
    so every reaped orphan requires another pass.
    """
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        is_orphan = pid not in supervisors
        supervisors.pop(pid, _NO_GROUP).end()
        if is_orphan or os.WIFSIGNALED(code):
            me = os.getpid()
            tree = partial(descendants, with_shells=with_shells)
            orphans = [p for p in tree(me) if p.parent == me and p.pid not in supervisors]
            kill_all([p for orphan in orphans for p in (orphan, *tree(orphan.pid))])


def status_of(code: int) -> Status:
    """Return how a process ended, from the result of `waitpid`."""
    return Status("signal", os.WTERMSIG(code)) if os.WIFSIGNALED(code) else Status("exit", os.WEXITSTATUS(code))


if __name__ == "__main__":
    harden()
    serve(sys.argv[3 : 3 + int(sys.argv[2])], spawn, limits=Limits.given())  # the rest marks whose process it is
