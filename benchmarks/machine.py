"""What the figures were measured on."""

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from benchmarks.quiet import NOISY, wait_for_quiet
from tests.server_process import ServiceMissingError
from tests.services import find_postgres, find_valkey
from tests.session_folder import SessionFolder

PACKAGES = ("celery", "kombu", "redis", "SQLAlchemy", "asyncpg", "pg8000", "langchain-core", "jsonschema-rs", "uvloop")


def facts() -> dict[str, str]:
    """Cores, load, interpreter and versions, by name."""
    load = ", ".join(f"{average:.2f}" for average in os.getloadavg())
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "processor": _processor(),
        "load average": load,
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "Valkey": _word_after("v=", _valkey()),
        "PostgreSQL": _postgres().split(" ")[-1],
        **{package: _version(package) for package in PACKAGES},
    }


def line(machine: dict[str, str]) -> str:
    """The facts as one sentence's worth of text."""
    return "; ".join(f"{name} {value}" for name, value in machine.items() if value)


def is_busy() -> bool:
    """Whether others use much of the machine right now."""
    return wait_for_quiet(0) > NOISY


def _processor() -> str:
    with suppress(OSError):
        for entry in Path("/proc/cpuinfo").read_text().splitlines():
            if entry.startswith("model name"):
                return entry.partition(":")[2].strip()
    return platform.processor()


def _version(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    return ""


def _valkey() -> str:
    with suppress(ServiceMissingError):
        return _output(str(find_valkey()), "--version")
    return ""


def _postgres() -> str:
    folder = SessionFolder()
    try:
        with suppress(ServiceMissingError):
            return _output(str(find_postgres(folder.path, must_be_open=False) / "postgres"), "--version")
        return ""
    finally:
        folder.remove()


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _word_after(mark: str, text: str) -> str:
    return text.partition(mark)[2].partition(" ")[0]
