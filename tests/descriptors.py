"""The open descriptors of a process: tests use them to see that nothing is left behind."""

import contextlib
import os
from pathlib import Path

Descriptors = set[tuple[int, str]]
"""Each by its number and by what the kernel calls it: a path, `pipe:[7]`."""


def descriptors(*below: Path | str, pid: int | str = "self") -> Descriptors:
    """What is open now, or only what lies below these folders; what was deleted meanwhile counts.

    Name folders wherever that will do: in all there is, threads and the garbage of earlier tests have a share.
    Of all there is, ask whether anything is new, never how much it is: the collector may close garbage at any moment.
    """
    found, names = set(), tuple(map(str, below)) or ""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own, or closed since
            name = os.readlink(f"/proc/{pid}/fd/{number}")
            if name.startswith(names):
                found.add((int(number), name))
    return found
