"""The folder of one shell as seen by others than its supervisor: request, state, owner and output."""

import json
import os
import signal
import stat
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple

from forge_tools.model.places import ShellRecord, ShellStatus, host_of
from forge_tools.sandbox.paths.confinement import Descriptor
from forge_tools.sandbox.processes.endings import ProcessHandle, end
from forge_tools.sandbox.processes.trees import SHELL, start_ticks
from forge_tools.sandbox.shells.supervisor import (
    LEASE,
    ORDERS,
    READ,
    RECORD,
    SEGMENT,
    STATUS,
    kernel_id,
    replace,
    restate,
)
from forge_tools.sandbox.walls.cgroups import Limits

_ORDER = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_BYTES = 1 << 20
_TEXTS = ("command", "cwd", "description", "session_id", "agent_id", "execution_id", "kernel", "ended_by")
_SECONDS = ("started_at", "ended_at", "runtime_s", "took_s")
_TOO_MANY_SECONDS = 2e11  # beyond any date


class Piece(NamedTuple):
    """Consecutive bytes, and where in the stream they begin."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class Output:
    """The files of one shell's output in its open folder. Many may read while the supervisor writes."""

    def __init__(self, folder: int) -> None:
        self._folder = folder

    @property
    def size(self) -> int:
        """How many bytes were written, kept or not, according to the files."""
        return self._last()[0]

    @property
    def changed_at(self) -> float | None:
        """When something was last written, in seconds since the epoch; None if nothing was."""
        return self._last()[1]

    def read(self, start: int, limit: int) -> list[Piece]:
        """Return what is kept from `start` on, `limit` bytes at most; between two pieces something is missing."""
        pieces: list[Piece] = []
        segments = self._segments()
        for index, (begin, name) in enumerate(segments):
            if index + 1 < len(segments) and segments[index + 1][0] <= start:
                continue
            data = self._read(name, max(0, start - begin), limit)
            if not data:
                continue
            first = max(start, begin)
            if pieces and pieces[-1].end == first:
                pieces[-1] = Piece(pieces[-1].start, pieces[-1].data + data)
            else:
                pieces.append(Piece(first, data))
            limit -= len(data)
            if limit <= 0:
                break
        return pieces

    def _segments(self) -> list[tuple[int, str]]:
        """List (first position, name). A name states where it begins, so only numbers are valid."""
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(SEGMENT)]  # noqa: PTH208  of a handle
        except OSError:
            return []
        numbers = ((name.removesuffix(SEGMENT), name) for name in names)
        return sorted((int(number), name) for number, name in numbers if number.isascii() and number.isdigit())

    def _last(self) -> tuple[int, float | None]:
        for begin, name in self._segments()[-1:]:
            with suppress(OSError):
                status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    return begin + status.st_size, status.st_mtime
            return begin, 0.0
        return 0, None

    def _read(self, name: str, offset: int, limit: int) -> bytes:
        """Read a file; empty if it is gone or was replaced by something else."""
        with suppress(OSError), Descriptor(os.open(name, READ, dir_fd=self._folder)) as file:
            return os.pread(file.fd, limit, offset) if stat.S_ISREG(os.fstat(file.fd).st_mode) else b""
        return b""


class ShellFolder(Descriptor):
    """One shell's folder, held open."""

    def __init__(self, fd: int, id: str) -> None:
        self.fd = fd
        self.id = id
        self.output = Output(fd)
        self._read: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self._asked = self._load(RECORD)

    @property
    def session_id(self) -> str | None:
        return self._asked.get("session_id")

    @property
    def size(self) -> int:
        """How many bytes it has written, kept or not."""
        return max(self.output.size, int(self.facts().get("size", 0)))

    @property
    def is_whole(self) -> bool:
        """Whether its supervisor has written its first status."""
        return bool(self._asked) and "state" in self.facts()

    def facts(self) -> dict[str, Any]:
        """Return the supervisor's last status, as written: `state`, `exit_code`, `runtime_s`, ..."""
        return self._load(STATUS)

    def is_going_on(self) -> bool:
        """Whether it runs under its supervisor."""
        facts = self.facts()
        return facts.get("state") == ShellStatus.RUNNING and _is_supervised(facts)

    def record(self) -> ShellRecord:
        """Return the state of the shell; if its supervisor has vanished, record it as LOST and end it."""
        is_going_on, facts = self.is_going_on(), self.facts()  # it may end between the two reads, but not begin
        if facts.get("state") == ShellStatus.RUNNING and not is_going_on:
            facts = self._settle(facts)
        asked, ended_at = self._asked, facts.get("ended_at")
        return ShellRecord(
            id=self.id,
            hostname=host_of(self.id) or "",
            command=asked.get("command", ""),
            cwd=asked.get("cwd", ""),
            status=ShellStatus(facts.get("state", ShellStatus.LOST)),
            kernel=facts.get("kernel", ""),
            pid=facts.get("pid", 0),
            start_ticks=facts.get("start_ticks", 0),
            started_at=datetime.fromtimestamp(asked.get("started_at", 0), UTC),
            **{name: asked.get(name) for name in ("description", "session_id", "agent_id", "execution_id")},
            exit_code=facts.get("exit_code"),
            signal=facts.get("signal"),
            size=max(self.output.size, facts.get("size", 0)),
            ended_at=None if ended_at is None else datetime.fromtimestamp(ended_at, UTC),
        )

    def order(self, name: str, grace_seconds: float) -> bool:
        """Order the supervisor to end the shell; return whether it still exists."""
        is_told = self._pass_on(f"{name} {grace_seconds}\n".encode()) or _signal(self.facts(), signal.SIGTERM)
        self.rouse()
        return is_told

    def rouse(self) -> None:
        """Resume a stopped supervisor, since it would miss orders: its own command may stop it."""
        _signal(self.facts(), signal.SIGCONT)

    def renew(self) -> None:
        with suppress(OSError):  # it has just been forgotten
            os.utime(LEASE, dir_fd=self.fd, follow_symlinks=False)

    def runtime_seconds(self) -> float | None:
        """Return how long it has been running, or ran; None if unknown."""
        facts = self.facts()
        runtime: float | None = facts.get("runtime_s")
        if facts.get("state") == ShellStatus.RUNNING:
            runtime = max(0.0, round(time.time() - float(self._asked.get("started_at", 0)), 3))
        return runtime

    def quiet_seconds(self) -> float | None:
        """Return how long ago it last wrote something; None if it never has."""
        changed_at = self.output.changed_at
        return None if changed_at is None else max(0.0, round(time.time() - changed_at, 3))

    def cursor(self, reader: str | None) -> int:
        """Return the position that the reader last recorded."""
        return int(self._load(_cursor_name(reader)).get("since", 0))

    def keep_cursor(self, reader: str | None, since: int) -> None:
        """Record it; a reader that gives no position continues from there."""
        if since != self.cursor(reader):
            with suppress(OSError):  # it only saves the reader from repeating it
                replace(self.fd, _cursor_name(reader), {"since": since})

    def _pass_on(self, order: bytes) -> bool:
        with suppress(OSError), Descriptor(os.open(ORDERS, _ORDER, dir_fd=self.fd)) as pipe:
            return stat.S_ISFIFO(os.fstat(pipe.fd).st_mode) and os.write(pipe.fd, order) > 0
        return False

    def _settle(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Record that its end is unknown; end whatever runs unsupervised."""
        if facts.get("kernel") == kernel_id():
            _sweep(self.id, facts)
        facts = facts | {"state": ShellStatus.LOST.value, "ended_at": time.time(), "size": self.output.size}
        with suppress(OSError):
            restate(self.fd, facts)
        return facts

    def _load(self, name: str) -> dict[str, Any]:
        """Read a JSON file, from memory if it has not changed; empty if it is invalid."""
        try:
            seen = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            if not stat.S_ISREG(seen.st_mode):
                return {}
            identity = seen.st_ino, seen.st_mtime_ns, seen.st_size
            if not (known := self._read.get(name)) or known[0] != identity or not known[1]:
                self._read[name] = identity, _json(os.open(name, READ, dir_fd=self.fd))
        except OSError:
            return {}
        return self._read[name][1]


def _sweep(handle: str, facts: dict[str, Any]) -> None:
    """End what carries the mark of the shell, and while its command lives, all its descendants, marked or not."""
    with closing(ProcessHandle(facts.get("child", 0))) as root:
        is_its = start_ticks(root.pid) == facts.get("child_ticks", -1)  # held first: this is the process checked
        end(f"{SHELL}={handle}".encode(), root=root if is_its else None)
        Limits.given().of_shell(handle).end()


def _signal(facts: dict[str, Any], number: int) -> bool:
    with closing(ProcessHandle(facts.get("pid", 0))) as supervisor:
        return _is_supervised(facts) and supervisor.send(number)  # held first, as above


def _json(fd: int) -> dict[str, Any]:
    """Read only the valid entries: the commands of a shell can write anything here."""
    try:
        found = json.loads(os.read(fd, _MAX_BYTES)) if stat.S_ISREG(os.fstat(fd).st_mode) else {}
    except (ValueError, RecursionError):
        return {}
    finally:
        os.close(fd)
    if not isinstance(found, dict):
        return {}
    # A state that does not exist counts as lost: without any, the shell would seem not to have been started.
    states = {"state": ShellStatus.LOST.value} if "state" in found else {}
    return states | {name: value for name, value in found.items() if _is_sound(name, value)}


def _is_sound(name: str, value: object) -> bool:
    if name in _TEXTS:
        return isinstance(value, str)
    if name == "state":
        return value in list(ShellStatus)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < _TOO_MANY_SECONDS if name in _SECONDS else isinstance(value, int) and abs(value) < 1 << 63


def _is_supervised(facts: dict[str, Any]) -> bool:
    """Whether the very process that wrote this still lives: a reused pid is another process."""
    pid, ticks = int(facts.get("pid", 0)), int(facts.get("start_ticks", 0))
    if facts.get("kernel") != kernel_id() or pid <= 0:
        return False
    if ticks:
        return start_ticks(pid) == ticks
    try:  # no /proc on this system
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _cursor_name(reader: str | None) -> str:
    return f"cursor.{blake2b((reader or '').encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}.json"
