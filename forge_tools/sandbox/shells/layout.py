"""What lies in the folder of a shell, and how it is written. The standard library alone: supervisors load little.

`record.json` is what was asked, written once by whoever started it. `status.json` is how it goes, replaced whole by the
supervisor. `lease` was last touched when somebody cared. `orders` is a pipe that the supervisor reads lines from. Files that
end in `.out` hold the output; their names say where in it they begin.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

RECORD = "record.json"
STATUS = "status.json"
LEASE = "lease"
ORDERS = "orders"
SEGMENT = ".out"

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a file of the folder is opened: a link, or a pipe that nobody feeds, must not fool us."""

WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def segment(start: int) -> str:
    """Name the file whose first byte is that one of the output."""
    return f"{start:015d}{SEGMENT}"


def replace(folder: int, name: str, content: Mapping[str, object]) -> None:
    """Put a file in the place of the old one, so that readers see either."""
    new = f"{name}.{os.getpid()}"
    try:
        with os.fdopen(os.open(new, WRITE, 0o600, dir_fd=folder), "w") as file:
            json.dump(content, file)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise


def restate(folder: int, name: str, content: Mapping[str, object]) -> None:
    """Replace a small file, or write it anew where it lies: even a disk that is full has room for that.

    It grows by a byte at least, so that whoever looks at its size sees that it is another.
    """
    try:
        replace(folder, name, content)
    except OSError:
        fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.pwrite(fd, json.dumps(content).encode().ljust(os.fstat(fd).st_size + 1), 0)
        finally:
            os.close(fd)


@cache
def kernel_id() -> str:
    """The boot id of this host's kernel; empty where it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123  pathlib costs 10 ms
            return file.read().strip()
    except OSError:
        return ""
