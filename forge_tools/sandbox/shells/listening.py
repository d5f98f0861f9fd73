"""Which TCP ports processes listen on, as the kernel says it under /proc; elsewhere nobody knows."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_TABLES = ("tcp", "tcp6")
_LISTENING = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_MAX_HANDLES = 4096  # of one process; a server with more connections than that opened its port before them


def listening_ports(pids: Iterable[int]) -> tuple[int, ...]:
    """List the ports that any of these processes listens on, in whatever network each of them is."""
    found: set[int] = set()
    for pid in pids:
        if sockets := set(_sockets(pid)):
            found.update(port for port, inode in _listeners(pid) if inode in sockets)
    return tuple(sorted(found))


def _sockets(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):  # gone by now, somebody else's, or no /proc here
        for number in sorted(os.listdir(folder), key=int)[:_MAX_HANDLES]:  # noqa: PTH208  names are all that is wanted
            with suppress(OSError):
                if found := _SOCKET.fullmatch(os.readlink(f"{folder}/{number}")):  # noqa: PTH115  thousands of them
                    yield found[1]


def _listeners(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the port and the inode of each socket that listens in the network of a process."""
    for table in _TABLES:
        with suppress(OSError):  # as above; or no IPv6
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING:
                    yield int(fields[1].rpartition(":")[2], 16), fields[9]
