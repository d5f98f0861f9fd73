"""What folders were when somebody looked, and which have had names put in or taken out since."""

import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress

from forge_tools.errors import SandboxError
from forge_tools.sandbox.handles import Handle
from forge_tools.sandbox.roots import OpenRoot

Sighting = tuple[int, int, int]
"""Device, inode and time of the last change of a folder. The kernel sets that time, and nobody can set it back."""

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_COARSE_CLOCK = (
    5 if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_REALTIME
)  # of Linux: the one that file times come from
_TICK_SECONDS = 0.01
_MAX_PAUSES = 3
_UNKNOWN = -1
_SECOND_NS = 1_000_000_000


class Look:
    """Looks at open folders, before they are listed.

    One that has changed in this very tick of the clock could change once more and show the same time: it is looked at again
    when the tick is over. A few times; a folder that changes all the time is one that has changed.
    """

    def __init__(self) -> None:
        self._pauses = 0

    def at(self, folder: int) -> Sighting:
        status = os.fstat(folder)
        while status.st_ctime_ns >= time.clock_gettime_ns(_COARSE_CLOCK) and self._pauses < _MAX_PAUSES:
            self._pauses += 1
            time.sleep(_TICK_SECONDS)
            status = os.fstat(folder)
        changed = status.st_ctime_ns
        is_fresh = changed >= time.clock_gettime_ns(_COARSE_CLOCK)
        # Some file systems keep whole seconds.
        is_coarse = changed % _SECOND_NS == 0 and time.time_ns() - changed < 2 * _SECOND_NS
        return status.st_dev, status.st_ino, _UNKNOWN if is_fresh or is_coarse else changed


class Changes:
    """The folders that are not, or not surely, what they were. Paths are relative, those of folders end in a slash."""

    def __init__(self, seen: Mapping[str, Sighting] | None = None, changed: frozenset[str] = frozenset()) -> None:
        self._seen = seen or {}
        self._changed = changed
        self._known: dict[str, str | None] = {}

    def __bool__(self) -> bool:
        return bool(self._changed)

    def above(self, path: str) -> str | None:
        """Return the first folder on a path that has changed or was never looked at; None where what is there is what was."""
        folder = path[: path.rfind("/") + 1]
        if folder not in self._known:
            self._known[folder] = next((one for one in _folders(folder) if self._is_doubtful(one)), None)
        return self._known[folder]

    def _is_doubtful(self, folder: str) -> bool:
        return folder in self._changed or folder not in self._seen


def changes_since(seen: Mapping[str, Sighting], folder: int) -> Changes:
    """Look again at folders below an open one (itself is "")."""
    return Changes(seen, frozenset(path for path, sighting in seen.items() if _now(folder, path) != sighting))


def open_allowed(root: OpenRoot, inside: str, shown: str) -> Handle | None:
    """Open a regular file by its path below a root; None where it is gone, leads out or is protected."""
    with suppress(OSError, SandboxError):
        handle = Handle(root.open(inside, _READ), shown, root)
        try:
            root.check(handle.fd, shown)
            if stat.S_ISREG(handle.stat.st_mode):
                return handle
        except SandboxError:
            pass
        handle.close()
    return None


def _now(folder: int, path: str) -> Sighting | None:
    try:
        # A link on the way leads to another folder than the one that was seen, and is so noticed.
        status = os.stat(path or ".", dir_fd=folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _folders(path: str) -> list[str]:
    """The path of a folder and of all above it, from the first on."""
    return ["", *(path[: index + 1] for index, char in enumerate(path) if char == "/")]
