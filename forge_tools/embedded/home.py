"""The folder of the embedded stack: private, checked, and held by one stack at a time."""

import contextlib
import fcntl
import json
import os
import pwd
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from forge_tools.embedded import valkey
from forge_tools.errors import StackError
from forge_tools.project import broker_socket

LEFTOVER_SECONDS = 12.0
"""How long a server that outlived its stack may take to end."""

# What the stack itself puts into its folder: a folder with these may be made private, any other may not.
_OURS = frozenset({"forge.db", "lock", "logs", "valkey"})
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_HOLDER_BYTES = 4096  # padded: a reader never sees the end of an earlier, longer text
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the folder: the process of `forge-tools up`, its host, since when (ISO 8601, UTC), and whether it serves."""

    pid: int
    host: str
    since: str
    is_ready: bool = False


class HomeLock:
    """Holds the folder for this process, and lets the broker's server hold it for as long as it lives.

    There are two locks because there are two questions. `<home>/lock` answers "does a stack run here?": only this
    process holds it, and it names its holder. `<home>/valkey/lock` answers "is the old server gone?": the server
    inherits `server_fd`. The kernel drops both when their holders die, however they die, so neither file is ever stale
    or removed.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._fd = -1
        self._closing = threading.Lock()
        self.server_fd = -1

    def acquire(self, is_stopping: Callable[[], bool] = lambda: False) -> Self:
        """Take both locks. A server that outlived its stack is asked to end, and gets some seconds for it.

        Raises:
            StackError: a stack runs in the folder, or the old server does not end.
        """
        try:
            with explained(self._home):
                self._fd = self._take_own()
                self.server_fd = self._take_servers(is_stopping)
        except BaseException:
            self.release()
            raise
        return self

    def release(self) -> None:
        with self._closing:
            for fd in (self.server_fd, self._fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self.server_fd = -1

    def declare_ready(self) -> None:
        """Tell those who ask for the holder that its stack serves; from any thread."""
        with self._closing:
            holder = _read_holder(self._fd) if self._fd >= 0 else None
            if holder is not None:
                _write_holder(self._fd, replace(holder, is_ready=True))

    def _take_own(self) -> int:
        fd = _open_lock(self._home / "lock")
        if not _try_lock(fd, fcntl.LOCK_EX, patience=0.5):  # `stack_holder` shares it for a moment
            holder = _read_holder(fd)
            os.close(fd)
            raise StackError(_already_running(self._home, holder))
        os.ftruncate(fd, 0)  # until ours is there, nobody is to read the name of an earlier holder
        _write_holder(fd, Holder(os.getpid(), socket.gethostname(), datetime.now(UTC).isoformat(timespec="seconds")))
        return fd

    def _take_servers(self, is_stopping: Callable[[], bool]) -> int:
        fd = _open_lock(self._home / "valkey" / "lock")
        if _try_lock(fd, fcntl.LOCK_EX):
            return fd
        name = valkey.end_leftover(broker_socket(self._home))
        deadline = time.monotonic() + LEFTOVER_SECONDS
        while not _try_lock(fd, fcntl.LOCK_EX, patience=0.1):
            if time.monotonic() > deadline or is_stopping():
                os.close(fd)
                raise StackError(
                    f"{name} of an earlier stack still runs in {self._home} and has not ended within {LEFTOVER_SECONDS:.0f} s. "
                    "End that process, or set FORGE_HOME to another folder."
                )
        return fd


def open_home(home: Path) -> Path:
    """Create the folder, or check that it is ours and private; return its absolute path."""
    home = home.absolute()
    with explained(home):
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
        home = home.resolve()
        status = home.stat()
        if status.st_uid != os.getuid():
            raise StackError(
                f"{home} belongs to {_user(status.st_uid)}, but this is {_user(os.getuid())}. "
                "Run it as its owner, or set FORGE_HOME to a folder of your own."
            )
        if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
            is_allowed = status.st_mode & stat.S_IRWXU == stat.S_IRWXU
            way = "Its file system is read-only: set" if is_allowed else f"Run chmod 700 {home}, or set"
            raise StackError(
                f"{home} cannot be written to (mode {stat.filemode(status.st_mode)}). {way} FORGE_HOME to another folder."
            )
        _close_to_others(home, status.st_mode)
        for name in ("logs", "valkey"):
            (home / name).mkdir(mode=0o700, exist_ok=True)
    return home


def prepare_socket(socket_path: Path, home: Path) -> None:
    """Remove the socket that a killed server left, and check the folder if it is not `home`.

    Only for the holder of the folder's locks: a living server would lose its socket.
    """
    if socket_path.parent != home:
        private_folder(socket_path.parent)
    socket_path.unlink(missing_ok=True)


def private_folder(folder: Path) -> None:
    """Create a folder that only this user may enter, or check an existing one; a link there is an attack."""
    with explained(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & _OPEN_TO_OTHERS:
            raise StackError(
                f"{folder} must be a folder that {_user(os.getuid())} owns and nobody else may enter, because the broker's "
                "socket goes there. Remove it, set XDG_RUNTIME_DIR, or set FORGE_HOME to a shorter path."
            )


def stack_holder(home: Path) -> Holder | None:
    with contextlib.suppress(OSError):
        fd = os.open(home / "lock", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return None if _try_lock(fd, fcntl.LOCK_SH) else _read_holder(fd)
        finally:
            os.close(fd)
    return None


def _close_to_others(home: Path, mode: int) -> None:
    if not mode & _OPEN_TO_OTHERS:
        return
    names = {entry.name for entry in home.iterdir()}
    if mode & _WRITABLE_BY_OTHERS or (names and not names & _OURS):
        raise StackError(
            f"{home} is open to other users (mode {stat.filemode(mode)}), and the stack keeps parameters and results there. "
            f"Set FORGE_HOME to a folder of its own or, if nobody else uses this one, run chmod 700 {home}."
        )
    home.chmod(0o700)


def _open_lock(path: Path) -> int:
    with explained(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _try_lock(fd: int, kind: int, patience: float = 0.0) -> bool:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        except OSError as error:
            raise StackError(
                f"The file system cannot lock files ({error.strerror}). Set FORGE_HOME to a folder on a local disk."
            ) from error
        else:
            return True


def _read_holder(fd: int) -> Holder | None:
    with contextlib.suppress(ValueError, TypeError):  # the holder may be writing it this moment
        return Holder(**json.loads(os.pread(fd, _HOLDER_BYTES, 0)))
    return None


def _write_holder(fd: int, holder: Holder) -> None:
    os.pwrite(fd, json.dumps(asdict(holder)).encode().ljust(_HOLDER_BYTES), 0)


def _already_running(home: Path, holder: Holder | None) -> str:
    if holder is None:
        return f"A stack is already starting in {home}. Use that one, or set FORGE_HOME to another folder."
    return (
        f"A stack already runs in {home}: pid {holder.pid} on {holder.host}, since {holder.since}. "
        f"Use that one, stop it with kill {holder.pid}, or set FORGE_HOME to another folder."
    )


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what goes wrong with the folder into an error that says what to do."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise StackError(
            f"{error.filename or path} is not a folder, and the embedded stack needs one. "
            "Remove it, or set FORGE_HOME to another folder."
        ) from error
    except OSError as error:
        raise StackError(
            f"{error.filename or path} cannot be used: {error.strerror}. The embedded stack keeps its data below XDG_STATE_HOME or "
            "HOME: set one of them, or FORGE_HOME, to a folder that you may write to."
        ) from error
