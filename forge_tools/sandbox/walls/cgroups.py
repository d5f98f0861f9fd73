"""Groups of processes (cgroup v2): where one is delegated to a worker, others bound each child and command, and end all of it.

The standard library alone, and little of it: launchers load this. Below the delegated group `forge-rest` has what was in it before
and the supervisors of shells, `forge-shell-ID` a shell; `forge-worker-ID` has groups of children and commands, and in `worker` all else.
"""

import contextlib
import errno
import fcntl
import io
import os
import signal
import time
from collections import namedtuple
from threading import Thread

LIMITS = "FORGE_LIMITS"
"""The variable by which a worker tells the limits to what it starts."""

WAY_OUT = (
    "Name a group of cgroup v2 that is delegated to the user of the workers as FORGE_CGROUP, or unset it "
    "(docs/walls.md#limits)."
)
"""What to do if one cannot be divided."""

REST, _WORKER, _WORKERS, _SHELLS = "forge-rest", "worker", "forge-worker-", "forge-shell-"
_PATIENCE = 2.0  # seconds for what was killed to be gone
_TURN = 10.0  # seconds for other workers to divide the group
_TRIES = 10


class Cgroup:
    """A group with these bounds, 0 for none; it is made when somebody enters it. One without a path is none, and nothing happens."""

    def __init__(self, path: str = "", memory: int = 0, processes: int = 0) -> None:
        self._path, self._name, self._has_us = path, os.path.basename(path), False
        self._bounds = {"pids.max": processes or "max", "memory.max": memory or "max"}
        if memory:  # no swap on top of it; and what shares it is one piece of work, which ends whole
            self._bounds |= {"memory.swap.max": 0, "memory.oom.group": 1}
        self._leaving: Thread | None = None

    def enter(self, pid: int = 0) -> None:
        """Move this process into it, or another."""
        if not self._path:
            return
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._path)
        for name, bound in self._bounds.items():
            with contextlib.suppress(FileNotFoundError):  # not offered here, as `held` says
                write(f"{self._path}/{name}", bound)
        write(f"{self._path}/cgroup.procs", pid)
        if not pid:
            self._has_us = True
            self._path = f"/proc/self/fd/{os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)}"  # from behind walls, too

    def leave(self, beside: str = _WORKER) -> None:
        """Move this process to a group beside it, but not what it has started: on a thread, as that takes some ten milliseconds."""
        self._leaving = Thread(target=self._leave, args=(beside,)) if self._has_us else None
        try:
            if self._leaving is not None:
                self._leaving.start()
        except RuntimeError:  # what it has started leaves no room for a thread
            self._leaving = None
            self._leave(beside)

    def kill(self) -> bool:
        """Kill all that is in it at once; return whether the kernel could."""
        if self._leaving is not None:
            self._leaving.join()
        with contextlib.suppress(OSError):
            if self._path and not self._has_us:
                write(f"{self._path}/cgroup.kill", 1)
                return True
        return False

    def end(self, *, kills: bool = True) -> None:
        """Kill what is left in it, and remove it; or only remove it, if that ends by itself."""
        deadline = time.monotonic() + _PATIENCE
        while self._path and not self.remove() and time.monotonic() < deadline:
            if kills:
                self.kill()
            time.sleep(0.001)

    def remove(self) -> bool:
        """Remove it with groups that were made in it, unless processes are left; return whether it is gone."""
        with contextlib.suppress(OSError):
            for path, groups, _ in os.walk(self._path, topdown=False):
                for group in groups:
                    os.rmdir(f"{path}/{group}")
            os.rmdir(f"{self._path}/../{self._name}")
        return not os.path.exists(f"{self._path}/../{self._name}/cgroup.procs")

    def try_out(self) -> None:
        """Place a process that is thrown away in it, and kill it there, to see that this works."""
        if (pid := os.fork()) == 0:
            time.sleep(_PATIENCE)
            os._exit(0)
        try:
            self.enter(pid)
            if not self.kill():
                raise OSError(errno.ENOSYS, "cgroup.kill, which needs Linux 5.14, is missing")
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.end()

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has ended what was in it for that reason."""
        events = _read(f"{self._path}/memory.events") if self._path else ""
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in events.splitlines())

    def _leave(self, beside: str) -> None:
        with contextlib.suppress(OSError):
            write(f"{self._path}/../{beside}/cgroup.procs", 0)
            self._has_us = False


class Limits(namedtuple("Limits", ("memory", "processes", "home"), defaults=(0, 0, ""))):  # typing takes milliseconds
    """What one call may use, in bytes, and in processes and threads, 0 for no limit; and where this worker has groups, if it has any."""

    __slots__ = ()
    memory: int
    processes: int
    home: str

    @property
    def held(self) -> str:
        """What the kernel bounds by groups here."""
        return " and ".join(controllers(self.home, "subtree_control")) if self.home else ""

    @classmethod
    def given(cls) -> "Limits":
        """Return those of this process; outside of workers the default of FORGE_TOOL_PROCESSES."""
        memory, processes, home = os.environ.get(LIMITS, "0 4096 ").split(" ", 2)
        return cls(int(memory), int(processes), home)

    def give(self) -> None:
        """Have them hold for this process, and for what it starts."""
        os.environ[LIMITS] = f"{self.memory} {self.processes} {self.home}"

    def group(self, name: str) -> Cgroup:
        """Return the group of a child or a command."""
        return Cgroup(f"{self.home}/{name}", self.memory, self.processes) if self.home else Cgroup()

    def rest(self) -> Cgroup:
        """Return the group of what outlives the worker, but for shells."""
        return Cgroup(f"{self.home}/../{REST}" if self.home else "")

    def of_shell(self, id: str) -> Cgroup:
        """Return the group of a shell, which outlives the worker."""
        return self.group(f"../{_SHELLS}{id}")

    def exceeded_by(self, what: str) -> str:
        return (
            f"{what} needed more than {self.memory / 2**20:,.0f} MiB of memory, the limit for one call with all its processes. "
            "Give it less to do at once, or raise FORGE_TOOL_MEMORY on the workers (bytes; 0 for no limit)."
        )

    def divided(self, base: str, worker: str) -> "Limits":
        """Divide a delegated group, and move this process, that worker, into its part; return these limits with that."""
        limits, own = self._replace(home=f"{base}/{_WORKERS}{worker}"), f"{base}/{_WORKERS}{worker}/{_WORKER}"
        with open(f"{base}/cgroup.controllers") as lock:  # which groups of version 1 do not have
            _take_turn(lock)
            for path in _groups(base):
                name = os.path.basename(path)
                if name.startswith(_SHELLS):
                    Cgroup(path).remove()
                elif name.startswith(_WORKERS) and Cgroup(f"{path}/{_WORKER}").remove():  # none can enter it again
                    Cgroup(path).end()
            for path in (f"{base}/{REST}", own):
                os.makedirs(path, exist_ok=True)
            for name in controllers(base):
                _offer(base, name)
                _offer(limits.home, name)
            write(f"{own}/cgroup.procs", 0)
        limits.group("trial").try_out()
        return limits

    def end_worker(self, worker: str) -> None:
        """End what is left of the children and commands of that worker, wherever they went."""
        for path in _groups(f"{self.home}/../{_WORKERS}{worker}") if self.home else ():
            if os.path.basename(path) != _WORKER:
                Cgroup(path).end()


def passed_on() -> dict[str, str]:
    """Return what has the limits of this process hold for another, in its environment."""
    return {LIMITS: os.environ[LIMITS]} if LIMITS in os.environ else {}


def delegated(named: str = "") -> tuple[str, str]:
    """Return the group that this process may divide: the one named, else its own if that was delegated to it; else "", and why."""
    mount = next((line.split() for line in _read("/proc/self/mountinfo").splitlines() if " - cgroup2 " in line), None)
    path = next((line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    if named or mount is None:
        return named, "no cgroup v2"
    own = f"{mount[4]}{path.removeprefix(mount[3].rstrip('/'))}".rstrip("/").removesuffix(f"/{REST}")
    for name in ("user.delegate", "trusted.delegate"):  # so says systemd
        with contextlib.suppress(OSError):
            if os.getxattr(own, name) == b"1":
                return own, ""
    return "", f"cgroup {own} is not delegated"


def controllers(base: str, which: str = "controllers") -> list[str]:
    """Return what the kernel can bound by groups in that one; with `subtree_control`, what it does."""
    return [name for name in _read(f"{base}/cgroup.{which}").split() if name in ("memory", "pids")]


def _take_turn(lock: io.TextIOWrapper) -> None:
    """Lock it, so that one worker at a time divides; but not for ever, since anybody who may read it can lock it."""
    deadline = time.monotonic() + _TURN
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, f"another process keeps {lock.name} locked") from None
        time.sleep(0.01)


def _offer(base: str, name: str) -> None:
    """Let the groups in one have a controller: where they do, it has no processes of its own."""
    for _ in range(_TRIES):
        try:
            return write(f"{base}/cgroup.subtree_control", f"+{name}")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        for pid in _read(f"{base}/cgroup.procs").split():
            with contextlib.suppress(OSError):  # it has just ended
                write(f"{base}/{REST}/cgroup.procs", pid)
    raise OSError(errno.EBUSY, f"cgroup {base} does not become empty")


def _groups(path: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return [entry.path for entry in entries if entry.is_dir()]
    return []


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path, errors="surrogateescape") as file:  # mounts may have any name
        return file.read()
    return ""


def write(path: str, text: object) -> None:
    """Write to a file of the kernel, at once."""
    with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "w") as file:
        file.write(str(text))
