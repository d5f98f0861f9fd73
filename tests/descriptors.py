"""The open descriptors of a process: tests use them to see that nothing is left behind."""

import contextlib
import os
from pathlib import Path

import pytest

Descriptors = set[tuple[int, str]]
"""Each by its number and by what the kernel calls it: a path, `pipe:[7]`."""


def of_worker(pid: int, name: str) -> Path:
    """A file or folder of a worker in /proc; skip where this user may not look in, since workers are closed to their own."""
    path = Path(f"/proc/{pid}/{name}")
    try:
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        pytest.skip("a worker is closed to others of its user, and only root can look into it")
    return path


def descriptors(*below: Path | str, pid: int | str = "self") -> Descriptors:
    """What is open now, or only what lies below these folders; what was deleted meanwhile counts.

    Name folders wherever that will do: in all there is, threads and the garbage of earlier tests have a share.
    Of all there is, ask whether anything is new, never how much it is: the collector may close garbage at any moment.
    """
    found, names = set(), tuple(map(str, below)) or ""
    for number in os.listdir(f"/proc/{pid}/fd" if pid == "self" else of_worker(int(pid), "fd")):
        with contextlib.suppress(FileNotFoundError):  # the listing's own, or closed since
            name = os.readlink(f"/proc/{pid}/fd/{number}")
            if name.startswith(names):
                found.add((int(number), name))
    return found
