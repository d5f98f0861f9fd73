"""How to write `forge-tools` so that the line can be copied and pasted here."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from forge_tools.config import Settings

_MODULE = "forge_tools.cli"


def own_argv() -> list[str]:
    """This very installation's command line, for a child process; the current folder shadows nothing."""
    return [sys.executable, "-P", "-m", _MODULE]


def command_line(settings: Settings) -> str:
    """What to type before a command, with the folder of the stack where that is not the usual one."""
    program = _program()
    usual = Settings.model_fields["home"].default
    if settings.home.resolve() == Path(usual).resolve():
        return program
    return f"FORGE_HOME={shlex.quote(str(settings.home.resolve()))} {program}"


def _program() -> str:
    script = Path(sys.executable).parent / "forge-tools"
    on_path = shutil.which("forge-tools")
    if on_path and (not script.exists() or Path(on_path).samefile(script)):
        return "forge-tools"
    if script.exists():
        relative = os.path.relpath(script)
        return shlex.quote(relative if not relative.startswith("..") else str(script))
    return f"{shlex.quote(sys.executable)} -m {_MODULE}"
