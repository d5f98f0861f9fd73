"""What a body may change of the process it runs in, put back for the next one: nobody inherits a stranger's habits."""

import os
import sys
from contextlib import suppress
from pathlib import Path


class Surroundings:
    """The folder, file mode mask, variables, import path and limits of this process, as they are when this is made."""

    def __init__(self) -> None:
        self._folder = Path.cwd()
        self._mask = _mask()
        self._variables = dict(os.environb)  # as bytes: decoding them costs more than comparing
        self._path = list(sys.path)
        self._recursion = sys.getrecursionlimit()
        self._interval = sys.getswitchinterval()

    def restore(self) -> None:
        """Put back what is not as it was."""
        with suppress(OSError):  # the folder is gone; the next body is told so where it matters
            os.chdir(self._folder)
        os.umask(self._mask)
        if dict(os.environb) != self._variables:
            os.environb.clear()
            os.environb.update(self._variables)
        sys.path[:] = self._path
        sys.setrecursionlimit(self._recursion)
        sys.setswitchinterval(self._interval)


def _mask() -> int:
    """There is no way to look but to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
