"""One writer at a time in a folder: a lock that the kernel drops with its holder, and that leaves no file behind."""

import errno
import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from forge_tools.errors import SandboxError
from forge_tools.sandbox.refusals import LOCK_TIMEOUT

PATIENCE = 30.0
"""Seconds; a writer holds a folder for about a millisecond."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.01
_NO_LOCKS = frozenset({errno.EBADF, errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL})


@contextmanager
def lock_folder(folder: int, shown: str, check: Callable[[], None]) -> Iterator[None]:
    """Hold an open folder while its files are replaced. `check` is called while waiting, and may raise.

    Each open of the folder is a holder of its own, threads of one process too. Where the file system has no such locks
    (some network ones), writers are told apart by what they find changed.

    Raises:
        SandboxError: somebody else holds it for `PATIENCE` seconds (LOCK_TIMEOUT).
    """
    pause, deadline = _FIRST_PAUSE, time.monotonic() + PATIENCE
    while not _is_taken(folder):
        if time.monotonic() > deadline:
            what = f"Another writer holds the folder of {shown} for {PATIENCE:g} s. Try again later"
            raise SandboxError(what, LOCK_TIMEOUT)
        check()
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    try:
        yield
    finally:
        with suppress(OSError):  # there was no lock to take
            fcntl.flock(folder, fcntl.LOCK_UN)


def _is_taken(folder: int) -> bool:
    """Take the lock if nobody has it; where there are no locks there is nothing to wait for."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            return False
        if error.errno not in _NO_LOCKS:
            raise
    return True
