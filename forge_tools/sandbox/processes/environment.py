"""What a tool's process sees of our environment, by an allow-list: no URL, password or key; and its marks."""

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.sandbox.processes.trees import EXECUTION, INSTANCE, OWNERS

_ENVIRONMENT = slice(47, 49)  # env_start and env_end among the fields of /proc/PID/stat that follow the name
_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
_DEFAULTS = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/"}
# The same results on every host, and no interactive prompts.
_FIXED = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "DEBIAN_FRONTEND": "noninteractive",
    "NO_COLOR": "1",
}
_RESERVED = ("LD_", "DYLD_", "FORGE_", "BASH_FUNC_")
_RESERVED_NAMES = {"PATH", "BASH_ENV", "ENV", "IFS", "SHELLOPTS", "BASHOPTS", "PS4", "PYTHONPATH", "PYTHONHOME"}
_MAX_VARIABLES = 64


def instance_mark(instance: str) -> bytes:
    return f"{INSTANCE}={instance}".encode()


def attempt_mark(execution_id: str, attempt: int) -> bytes:
    return f"{EXECUTION}={execution_id}.{attempt}".encode()


def listed_with_marks(environment: Iterable[bytes] | None, execution_id: str, attempt: int) -> list[bytes]:
    """Return an environment as `NAME=value`, by default this process's, with the marks of an attempt of this worker."""
    if environment is None:
        environment = [name + b"=" + value for name, value in os.environb.items()]
    marks = [attempt_mark(execution_id, attempt)]
    if INSTANCE in os.environ:
        marks.append(instance_mark(os.environ[INSTANCE]))
    return [*(variable for variable in environment if not variable.startswith(OWNERS)), *marks]


def mapped_with_marks(environment: Mapping[Any, Any] | None, execution_id: str, attempt: int) -> dict[Any, Any]:
    """Do the same by name."""
    given = os.environ if environment is None else environment
    variables = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in given.items()]
    return dict(variable.split(b"=", 1) for variable in listed_with_marks(variables, execution_id, attempt))


def mark_worker(instance: str) -> None:
    """Mark whatever this process starts from now on with that worker instance; this process itself does not show it."""
    os.environ[INSTANCE] = instance


class Marking:
    """Marks this process, which must be a fork that runs one body at a time: what it forks and executes is marked too.

    Programs that a process executes inherit `os.environ`. A fork without exec shows its parent's /proc/PID/environ, the
    memory in which the kernel once put its environment. So that memory is overwritten, as programs do that set their
    own title; the variables move elsewhere first. It also holds the passwords in the URLs of the worker. If it cannot be
    written (no Linux, a tiny environment) only executed programs are marked.
    """

    def __init__(self) -> None:
        self._of_worker = [instance_mark(os.environ[INSTANCE])] if INSTANCE in os.environ else []
        self._region = _move_environment()
        self.clear()

    def put(self, execution_id: str, attempt: int) -> None:
        os.environ[EXECUTION] = f"{execution_id}.{attempt}"
        self._show(attempt_mark(execution_id, attempt))

    def clear(self) -> None:
        os.environ.pop(EXECUTION, None)
        self._show()

    def _show(self, *marks: bytes) -> None:
        start, end = self._region
        text = b"".join(mark + b"\0" for mark in (*self._of_worker, *marks))
        if not start or len(text) > end - start:
            return
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _move_environment() -> tuple[int, int]:
    """Move all variables out of the memory that this process was started with; return where that memory lies."""
    if sys.platform != "linux":
        return 0, 0
    for name, value in list(os.environb.items()):
        del os.environb[name]  # otherwise the C library might keep the old text if the value is the same
        os.environb[name] = value
    try:
        start, end = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[_ENVIRONMENT]
    except OSError:
        return 0, 0
    return int(start), int(end)


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Build the environment of a tool's process; `extra` is what the caller of the tool requested."""
    extra = extra or {}
    if len(extra) > _MAX_VARIABLES:
        raise _invalid(f"env has {len(extra)} variables; the limit is {_MAX_VARIABLES}")
    for name, value in extra.items():
        _check(name, value)
    ours = {name: os.environ[name] for name in (*_PASSED_ON, INSTANCE, EXECUTION) if name in os.environ}
    return {**_DEFAULTS, **ours, **_FIXED, **extra}


def _check(name: str, value: str) -> None:
    if not name or "=" in name or "\0" in name or not name.isprintable() or "\0" in value:
        why = "names must not be empty or contain `=`, values must not contain NUL"
        raise _invalid(f"env variable {name!r} cannot be passed to a process: {why}")
    if name in _RESERVED_NAMES or name.startswith(_RESERVED):
        raise _invalid(f"env may not set {name}: it changes which programs run. Set it inside the command instead")


def _invalid(message: str) -> SandboxError:
    return SandboxError(message, ErrorCode.VALIDATION_ERROR)
