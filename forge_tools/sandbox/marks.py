"""The marks by which a process is known: variables naming its worker and its attempt, inherited by whatever it starts."""

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

BOOT = "FORGE_BOOT"
EXECUTION = "FORGE_EXECUTION"

_NAMES = (f"{BOOT}=".encode(), f"{EXECUTION}=".encode())
_ENVIRONMENT = slice(47, 49)  # env_start and env_end among the fields of /proc/PID/stat that follow the name


def boot_mark(boot: str) -> bytes:
    """What everything that worker process started carries."""
    return f"{BOOT}={boot}".encode()


def attempt_mark(execution_id: str, attempt: int) -> bytes:
    """What everything the body of that attempt started carries."""
    return f"{EXECUTION}={execution_id}.{attempt}".encode()


def marks_of(pid: int) -> frozenset[bytes]:
    """The marks that a process carries; none where it is gone or another user's."""
    return marks_in(environment_of(pid))


def marks_in(environment: bytes) -> frozenset[bytes]:
    """The marks among the variables of a process, as its `environ` file has them."""
    return frozenset(
        v for v in environment.split(b"\0") if v.startswith((b"FORGE_BOOT=", b"FORGE_EXECUTION=", b"FORGE_SHELL="))
    )


def environment_of(pid: int) -> bytes:
    """What that file has, empty while the process executes a program; a question mark where it is gone or another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b"?"


def listed_with_marks(environment: Iterable[bytes] | None, execution_id: str, attempt: int) -> list[bytes]:
    """An environment as `NAME=value`, this process's if it is None, for what belongs to an attempt of this worker."""
    if environment is None:
        environment = [name + b"=" + value for name, value in os.environb.items()]
    marks = [attempt_mark(execution_id, attempt)]
    if BOOT in os.environ:
        marks.append(boot_mark(os.environ[BOOT]))
    return [*(variable for variable in environment if not variable.startswith(_NAMES)), *marks]


def mapped_with_marks(environment: Mapping[Any, Any] | None, execution_id: str, attempt: int) -> dict[Any, Any]:
    """The same by name."""
    given = os.environ if environment is None else environment
    variables = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in given.items()]
    return dict(variable.split(b"=", 1) for variable in listed_with_marks(variables, execution_id, attempt))


def mark_worker(boot: str) -> None:
    """Let whatever this process starts from now on belong to that worker boot; this process itself does not show it."""
    os.environ[BOOT] = boot


class Marking:
    """Marks this process, which must be a fork that runs one body at a time: what it forks and executes is marked too.

    What a process executes inherits `os.environ`. What it forks without executing shows what it shows itself in
    /proc/PID/environ, the memory in which the kernel once put its environment. So that memory is written over, as
    programs do that set their own title; the variables move elsewhere first. It also held the passwords in the URLs of
    the worker. Where it cannot be written (no Linux, a tiny environment) only what is executed is marked.
    """

    def __init__(self) -> None:
        self._boot = os.environ.get(BOOT)
        self._region = _move_environment()
        self.clear()

    def put(self, execution_id: str, attempt: int) -> None:
        """Belong to that attempt from now on."""
        os.environ[EXECUTION] = f"{execution_id}.{attempt}"
        self._show([*self._boot_marks(), attempt_mark(execution_id, attempt)])

    def clear(self) -> None:
        """Belong to the worker alone."""
        os.environ.pop(EXECUTION, None)
        self._show(self._boot_marks())

    def _boot_marks(self) -> list[bytes]:
        return [boot_mark(self._boot)] if self._boot else []

    def _show(self, marks: Iterable[bytes]) -> None:
        start, end = self._region
        text = b"".join(mark + b"\0" for mark in marks)
        if not start or len(text) > end - start:
            return
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _move_environment() -> tuple[int, int]:
    """Let no variable point into the memory that this process was started with; return where that memory lies."""
    if sys.platform != "linux":
        return 0, 0
    for name, value in list(os.environb.items()):
        del os.environb[name]  # or the C library might keep the old text where the value is the same
        os.environb[name] = value
    try:
        start, end = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[_ENVIRONMENT]
    except OSError:
        return 0, 0
    return int(start), int(end)
