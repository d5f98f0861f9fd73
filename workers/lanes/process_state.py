"""Whether a process is still fit for bodies, compared with its state at the start; and restoring what a body changed."""

import errno
import mmap
import os
import re
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from forge_tools.model.execution import ExecutionStatus, Outcome

RESERVE = 32
"""How many descriptors must be left: a body needs some to begin, and so does the end of a worker."""

SPARE_MEMORY = 16 * 2**20

SIGNALS = ("HUP", "INT", "QUIT", "PIPE", "ALRM", "TERM", "CHLD", "USR1", "USR2")
"""Those that we and our tools count on; libraries may handle others as they like."""

_LIMITS = {
    getattr(resource, name): name[7:] for name in sorted(dir(resource), reverse=True) if name.startswith("RLIMIT_")
}
_NUMBERS = tuple(getattr(signal, f"SIG{name}") for name in SIGNALS)
_MASK = sum(1 << number - 1 for number in _NUMBERS)
_SHORT = re.compile(
    "|".join([*(os.strerror(one) for one in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)), "can't start new thread"])
)


def shortage() -> str | None:
    """Return what this process cannot get although every body needs it."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        left = most - _open_descriptors()
        if most >= 0 and left < min(RESERVE, most // 8):
            return f"only {left} of {most} descriptors are left"
        mmap.mmap(-1, SPARE_MEMORY, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()  # private: no file behind it
    except OSError as error:
        return os.strerror(error.errno or 0)
    return None


def fell_short(outcome: Outcome) -> bool:
    """Return whether a body failed because its process could not get what it needed."""
    return outcome.status is ExecutionStatus.FAILED and _SHORT.search(outcome.error or "") is not None


class ProcessState:
    """The limits of a process, its signal handling and its standard streams, as they are when this is created."""

    def __init__(self) -> None:
        self._limits = _limits()
        self._signals = _signals()
        self.accept_streams()

    def accept_streams(self) -> None:
        """From here on, let the standard streams be as they are now."""
        self._streams = _streams()

    def changes(self, *, only_harm: bool = False) -> str | None:
        """Return what has changed, if anything: code may rely on it.

        `only_harm` ignores limits that were raised, and redirected streams.
        """
        limits = _limits()
        changed = [
            f"limit {name} is {_shown(limits[name])} and was {_shown(then)}"
            for name, then in self._limits.items()
            if limits[name] != then and not (only_harm and _is_raised(then, limits[name]))
        ]
        if self._signals and (signals := _signals()) and signals != self._signals:
            changed.append("signals are blocked, ignored or handled differently")
        streams = _streams()  # the next file that is opened would take the number of a closed one
        if streams != self._streams and (None in streams or not only_harm):
            changed.append("standard streams are closed or lead elsewhere")
        return "; ".join(changed) or None


def limit_this_process(size: int) -> None:
    """Make an allocation beyond `size` bytes raise MemoryError, here and in each process started from here.

    The limit is a soft one, so a program that reserves more than it uses can be started with `ulimit -d unlimited`.
    """
    if size:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (size if hard < 0 else min(size, hard), hard))


class Surroundings:
    """The folder, umask, variables, import path, streams and limits of this process, as they are when this is created."""

    def __init__(self) -> None:
        self._folder = Path.cwd()
        self._mask = _mask()
        self._variables = dict(os.environb)  # as bytes: decoding them costs more than comparing
        self._path = list(sys.path)
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._recursion = sys.getrecursionlimit()
        self._interval = sys.getswitchinterval()

    def set_variables(self, **variables: str) -> None:
        """Set variables for this body and those that come."""
        os.environ.update(variables)
        self._variables.update({os.fsencode(name): os.fsencode(value) for name, value in variables.items()})

    def restore(self) -> None:
        """Restore what has changed."""
        with suppress(OSError):  # the folder is gone; the next body gets the error if it matters
            os.chdir(self._folder)
        os.umask(self._mask)
        if dict(os.environb) != self._variables:
            os.environb.clear()
            os.environb.update(self._variables)
        sys.path[:] = self._path
        sys.stdin, sys.stdout, sys.stderr = self._streams
        sys.setrecursionlimit(self._recursion)
        sys.setswitchinterval(self._interval)


def _open_descriptors() -> int:
    """Count them: the number of a free one says nothing about those above it."""
    with suppress(OSError):
        if count := os.stat("/proc/self/fd").st_size:  # noqa: PTH116 each claim waits for it; Linux counts since 6.2
            return count
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 as above


def _limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(number) for number, name in _LIMITS.items()}


def _signals() -> list[object]:
    """Return Python's handlers and the kernel's masks: blocked in this thread, ignored, caught. Empty if /proc cannot be read."""
    with suppress(OSError), open("/proc/thread-self/status", "rb") as file:  # noqa: PTH123 each call of a child waits for it
        masks = [int(line[7:], 16) & _MASK for line in file if line.startswith((b"SigBlk", b"SigIgn", b"SigCgt"))]
        return [*masks, *map(signal.getsignal, _NUMBERS)]
    return []


def _streams() -> list[tuple[int, int] | None]:
    """Return where descriptors 0 to 2 lead; None for those that are closed, here or in Python."""
    return [_target(number, stream) for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr))]


def _target(number: int, stream: TextIO | None) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.fstat(number)
        return None if stream is not None and stream.closed else (found.st_dev, found.st_ino)
    return None


def _is_raised(then: tuple[int, int], now: tuple[int, int]) -> bool:
    return all(after == resource.RLIM_INFINITY or 0 <= before <= after for before, after in zip(then, now, strict=True))


def _shown(limit: tuple[int, int]) -> str:
    return "/".join("unlimited" if one == resource.RLIM_INFINITY else str(one) for one in limit)


def _mask() -> int:
    """Read the umask, which is only possible by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
