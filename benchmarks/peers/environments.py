"""Virtual environments in `.bench/`: one per peer, with exactly the versions that `requirements/` pins, and those of old commits."""

import hashlib
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import ROOT

FOLDER = ROOT / ".bench"
REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
STAMP = "installed"
INSTALL_SECONDS = 600


class InstallationError(RuntimeError):
    """A peer's packages could not be installed; the sentence says why."""


def interpreter(environment: str | None) -> str:
    """The Python of an environment; none is this one."""
    return sys.executable if environment is None else str(_folder(environment) / "bin" / "python")


def install(environment: str) -> None:
    """Make the environment with its requirements, unless it exists already.

    Raises:
        InstallationError: with pip's last words.
    """
    requirements = REQUIREMENTS / f"{environment}.txt"
    install_packages(environment, ["--requirement", str(requirements)], requirements.read_bytes())


def install_packages(environment: str, wanted: Sequence[str], versions: bytes) -> None:
    """Make the environment with what pip installs by these arguments, unless it exists with these `versions`."""
    stamp = _folder(environment) / STAMP
    mark = hashlib.sha256(versions + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == mark:
        return
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    venv.create(_folder(environment), clear=True, with_pip=True)
    _run(environment, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)
    stamp.write_text(mark)


def version(environment: str | None, package: str) -> str:
    """The version of `package` that is installed there.

    Raises:
        InstallationError: it is not.
    """
    command = (interpreter(environment), "-c", f"from importlib.metadata import version; print(version({package!r}))")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallationError(f"{package} is not installed in {environment or sys.prefix}")
    return done.stdout.strip()


def _run(environment: str, *arguments: str) -> None:
    try:
        done = subprocess.run(
            [interpreter(environment), *arguments], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InstallationError(f"{environment} was not installed within {INSTALL_SECONDS} s") from error
    if done.returncode:
        raise InstallationError(f"{environment} cannot be installed: {done.stderr.strip()[-500:]}")


def _folder(environment: str) -> Path:
    return FOLDER / environment
