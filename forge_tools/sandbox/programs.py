"""Where the programs are that tools start: never where a caller could have put one of the same name."""

import os
import sys
import sysconfig
from functools import cache
from pathlib import Path

_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh")


@cache
def find_shell() -> list[str]:
    """Return the command line of a shell without start-up files, bash where there is one; what to run follows `-c`."""
    shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), "/bin/sh")
    return [shell, "--noprofile", "--norc"] if shell.endswith("bash") else [shell]


@cache
def find_beside_python(name: str) -> str | None:
    """Find a program that a wheel installed for this Python, or None. `PATH` is not asked: it may lead into a workspace."""
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))]
    for folder in [*folders, str(Path(sys.executable).parent)]:
        path = Path(folder) / name
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None
