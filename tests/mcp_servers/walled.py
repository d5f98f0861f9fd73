"""A server that says what it can reach from where it was started."""

import os
import subprocess
import urllib.request
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("walled")


@server.tool()
def read(path: str) -> str:
    """Read a file, or list a folder."""
    place = Path(path).expanduser()
    try:
        return " ".join(sorted(os.listdir(place))) if place.is_dir() else place.read_text() or "(empty)"
    except OSError as error:
        return type(error).__name__


@server.tool()
def write(path: str, text: str) -> str:
    """Write a file."""
    try:
        Path(path).expanduser().write_text(text)
    except OSError as error:
        return type(error).__name__
    return "written"


@server.tool()
def fetch(url: str) -> str:
    """Get what is at a URL."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except OSError as error:
        return str(error)


@server.tool()
def variables() -> dict[str, str]:
    """Say what it was started with."""
    return dict(os.environ)


@server.tool()
def leave_behind(seconds: int) -> None:
    """Start a process that no session, parent or variable ties to this one."""
    subprocess.run(["env", "-i", "sh", "-c", f"setsid sleep {seconds} >/dev/null 2>&1 &"], check=True)


if __name__ == "__main__":
    server.run("stdio")
