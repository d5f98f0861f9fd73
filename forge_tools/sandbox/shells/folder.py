"""The folder of one shell as others than its supervisor see it: what was asked, how it goes, whose it is, what it has written."""

import json
import os
import signal
import stat
import time
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from types import TracebackType
from typing import Any, NamedTuple, Self

from forge_tools.records import ShellRecord, ShellStatus, host_of
from forge_tools.sandbox.processes.endings import Quarry, end
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


class Piece(NamedTuple):
    """Bytes that follow one another, and where in the stream they begin."""

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
        """How many bytes were written, kept or not, as far as the files tell."""
        segments = self._segments()
        return segments[-1][0] + self._status(segments[-1][1])[0] if segments else 0

    @property
    def changed_at(self) -> float | None:
        """When something was last written, in seconds since the epoch; None where nothing was."""
        segments = self._segments()
        return self._status(segments[-1][1])[1] if segments else None

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
        """List (first position, name). A name says where it begins, so a number is all that may stand there."""
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(SEGMENT)]  # noqa: PTH208  of a handle
        except OSError:
            return []
        numbers = ((name.removesuffix(SEGMENT), name) for name in names)
        return sorted((int(number), name) for number, name in numbers if number.isascii() and number.isdigit())

    def _status(self, name: str) -> tuple[int, float]:
        try:
            status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return 0, 0.0
        return (status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else (0, 0.0)

    def _read(self, name: str, offset: int, limit: int) -> bytes:
        """Read a file that may be gone by now, or be something that somebody else put there: that holds nothing."""
        try:
            fd = os.open(name, READ, dir_fd=self._folder)
        except OSError:
            return b""
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return b""
            return os.pread(fd, limit, offset)
        except OSError:
            return b""
        finally:
            os.close(fd)


_ORDER = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_BYTES = 1 << 20
_TOO_LARGE = 1 << 63


class ShellFolder:
    """One shell's folder, held open. Close it, or use it as a context manager; the last reference closes it too."""

    def __init__(self, fd: int, id: str) -> None:
        self.fd = fd
        self.id = id
        self.output = Output(fd)
        self._read: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self._asked = self._load(RECORD)

    @property
    def session_id(self) -> str | None:
        return _text(self._asked, "session_id")

    @property
    def size(self) -> int:
        """How many bytes it has written, kept or not."""
        return max(self.output.size, _whole(self._load(STATUS), "size") or 0)

    @property
    def is_whole(self) -> bool:
        """Whether its supervisor has got so far as to say how it goes."""
        return bool(self._asked) and "state" in self._load(STATUS)

    def facts(self) -> dict[str, Any]:
        """What the supervisor said last, as it wrote it: `state`, `exit_code`, `runtime_s`, ..."""
        return self._load(STATUS)

    def is_going_on(self) -> bool:
        """Whether it runs under its supervisor."""
        facts = self.facts()
        return facts.get("state") == ShellStatus.RUNNING and _is_supervised(facts)

    def record(self) -> ShellRecord:
        """Say how the shell is; one whose supervisor has vanished is LOST, and noted and ended as such."""
        is_going_on, facts = self.is_going_on(), self.facts()  # it may end between the two looks, but not begin
        if facts.get("state") == ShellStatus.RUNNING and not is_going_on:
            facts = self._settle(facts)
        return self._described(facts)

    def order(self, name: str, grace_seconds: float) -> bool:
        """Tell the supervisor to end the shell; return whether it is still there to hear."""
        is_told = self._pass_on(f"{name} {grace_seconds}\n".encode()) or _signal(self.facts(), signal.SIGTERM)
        self.rouse()
        return is_told

    def rouse(self) -> None:
        """Let a supervisor go on that was stopped, or it would hear of no order: its own command may do that."""
        _signal(self.facts(), signal.SIGCONT)

    def renew(self) -> None:
        """Say that somebody still cares."""
        with suppress(OSError):  # it has just been forgotten
            os.utime(LEASE, dir_fd=self.fd, follow_symlinks=False)

    def runtime_seconds(self) -> float | None:
        """How long it has been running, or ran; None where nobody knows. A clock that is set changes nothing."""
        facts = self.facts()
        if facts.get("state") != ShellStatus.RUNNING:
            return _number(facts, "runtime_s")
        ticks = _whole(facts, "start_ticks")
        if not ticks:
            return max(0.0, round(time.time() - (_number(self._asked, "started_at") or 0), 3))
        return round(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 3)

    def quiet_seconds(self) -> float | None:
        """How long ago it wrote something; None where it never has."""
        changed_at = self.output.changed_at
        return None if changed_at is None else max(0.0, round(time.time() - changed_at, 3))

    def cursor(self, reader: str | None) -> int:
        """Where that reader last said that it had come to."""
        return _whole(self._load(_cursor_name(reader)), "since") or 0

    def keep_cursor(self, reader: str | None, since: int) -> None:
        """Remember it; a reader that comes back without a word goes on from there."""
        if since != self.cursor(reader):
            with suppress(OSError):  # it only saves the reader from saying it again
                replace(self.fd, _cursor_name(reader), {"since": since})

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _pass_on(self, order: bytes) -> bool:
        try:
            fd = os.open(ORDERS, _ORDER, dir_fd=self.fd)
        except OSError:
            return False
        try:
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                return False
            os.write(fd, order)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def _settle(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Note that nobody knows how it ended; nothing of it goes on unsupervised."""
        if facts.get("kernel") == kernel_id():
            _sweep(self.id, facts)
        facts = facts | {"state": ShellStatus.LOST.value, "ended_at": time.time(), "size": self.output.size}
        with suppress(OSError):
            restate(self.fd, STATUS, facts)
        return facts

    def _described(self, facts: dict[str, Any]) -> ShellRecord:
        asked = self._asked
        ended_at = _number(facts, "ended_at")
        return ShellRecord(
            id=self.id,
            hostname=host_of(self.id) or "",
            command=_text(asked, "command") or "",
            cwd=_text(asked, "cwd") or "",
            status=_status(facts),
            kernel=_text(facts, "kernel") or "",
            pid=_whole(facts, "pid") or 0,
            start_ticks=_whole(facts, "start_ticks") or 0,
            started_at=_moment(_number(asked, "started_at") or 0),
            description=_text(asked, "description"),
            session_id=self.session_id,
            agent_id=_text(asked, "agent_id"),
            execution_id=_text(asked, "execution_id"),
            exit_code=_whole(facts, "exit_code"),
            signal=_whole(facts, "signal"),
            size=max(self.output.size, _whole(facts, "size") or 0),
            ended_at=None if ended_at is None else _moment(ended_at),
        )

    def _load(self, name: str) -> dict[str, Any]:
        """Read one of the files that are JSON, unless it is still the one read before; what is no such file says nothing."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sweep(handle: str, facts: dict[str, Any]) -> None:
    """End what carries the mark of the shell, and what is below its command while that lives, marked or not."""
    root = Quarry(_whole(facts, "child") or 0)
    try:
        is_its = start_ticks(root.pid) == (_whole(facts, "child_ticks") or -1)  # held first: it is what we look at
        end(f"{SHELL}={handle}".encode(), root=root if is_its else None)
    finally:
        root.close()


def _signal(facts: dict[str, Any], number: int) -> bool:
    """Send a signal to the supervisor; return whether it is there."""
    supervisor = Quarry(_whole(facts, "pid") or 0)
    try:
        return _is_supervised(facts) and supervisor.send(number)  # held first, as above
    finally:
        supervisor.close()


def _json(fd: int) -> dict[str, Any]:
    try:
        found = json.loads(os.read(fd, _MAX_BYTES)) if stat.S_ISREG(os.fstat(fd).st_mode) else {}
    except (ValueError, RecursionError):  # what a shell runs may write here too, and whatever it likes
        return {}
    finally:
        os.close(fd)
    return found if isinstance(found, dict) else {}


def _is_supervised(facts: dict[str, Any]) -> bool:
    """Whether the very process that wrote this still lives: a number that was given out again is another process."""
    pid, ticks = _whole(facts, "pid") or 0, _whole(facts, "start_ticks") or 0
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


def _status(facts: dict[str, Any]) -> ShellStatus:
    try:
        return ShellStatus(str(facts.get("state")))
    except ValueError:
        return ShellStatus.LOST


def _text(found: dict[str, Any], name: str) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) else None


def _number(found: dict[str, Any], name: str) -> int | float | None:
    value = found.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(found: dict[str, Any], name: str) -> int | None:
    value = _number(found, name)
    return value if isinstance(value, int) and abs(value) < _TOO_LARGE else None


def _moment(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
