"""Who types the command, for the record."""

import getpass
import socket


def whoami() -> str:
    """`user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
