"""What a body sees of the user that it runs as, and reaches of what is root's."""

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from forge_tools.tool import tool


def _sight(secret: str, workspace: str) -> dict[str, Any]:
    def attempt(path: str, flags: int) -> str:
        try:
            os.close(os.open(path, flags, 0o644))
        except OSError as error:
            return error.strerror or ""
        return "open"

    status = Path("/proc/self/status").read_text().splitlines()
    said = subprocess.run(
        ["sh", "-c", "id -u; id -G; echo $HOME; echo out > /dev/stderr"], capture_output=True, text=True, check=True
    )
    print("printed")
    os.system("echo by a program > /dev/stdout")
    with tempfile.TemporaryFile():
        return {
            "ids": [*os.getresuid(), *os.getresgid(), *os.getgroups()],
            "capabilities": [
                int(line.split()[1], 16) for line in status if line.startswith(("CapPrm", "CapEff", "CapBnd"))
            ][:2],
            "of a program": said.stdout.split(),
            "secret": attempt(secret, os.O_RDONLY),
            "workspace": attempt(f"{workspace}/by-{os.getuid()}", os.O_WRONLY | os.O_CREAT),
        }


@tool
def seen(secret: str, workspace: str) -> dict[str, Any]:
    """Look around."""
    return _sight(secret, workspace)


@tool(walls="landlock")
def seen_from_behind_walls(secret: str, workspace: str) -> dict[str, Any]:
    """Look around from behind walls."""
    return _sight(secret, workspace)


@tool
def picture() -> bytes:
    """Return bytes of that user's."""
    return bytes(range(256)) * 5000


@tool(walls="landlock")
def picture_from_behind_walls() -> bytes:
    """Return them from behind walls."""
    return bytes(range(255, -1, -1)) * 5000


@tool
def leave_a_daemon(file: str) -> None:
    """Start a process in a session of its own, with nothing in its environment, and block."""
    subprocess.run(["env", "-i", "sh", "-c", f"setsid sleep 300 & echo $! > {file}"], check=True)
    time.sleep(60)


@tool
def append(file: str) -> str:
    """Add a line to a file that somebody else made."""
    with Path(file).open("a") as opened:
        opened.write("more\n")
    return Path(file).read_text()
