"""What a tool's process sees of our environment: an allow-list, so that no URL, password or key is ever passed on."""

import os
from collections.abc import Mapping

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.sandbox.marks import BOOT, EXECUTION

_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
_MARKS = (BOOT, EXECUTION)  # by which a process is found that outlived its body
_DEFAULTS = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/"}
# The same answer on every host, and nothing that waits for a person.
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
_RESERVED_NAMES = frozenset(
    {"PATH", "BASH_ENV", "ENV", "IFS", "SHELLOPTS", "BASHOPTS", "PS4", "PYTHONPATH", "PYTHONHOME"}
)
_MAX_VARIABLES = 64


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Build the environment of a tool's process; `extra` is what the caller of the tool asked for.

    Raises:
        SandboxError: a variable that would change which programs run, or that no process could be given.
    """
    extra = extra or {}
    if len(extra) > _MAX_VARIABLES:
        raise _invalid(f"env has {len(extra)} variables; the limit is {_MAX_VARIABLES}")
    for name, value in extra.items():
        _check(name, value)
    ours = {name: os.environ[name] for name in (*_PASSED_ON, *_MARKS) if name in os.environ}
    return {**_DEFAULTS, **ours, **_FIXED, **extra}


def _check(name: str, value: str) -> None:
    if not name or "=" in name or "\0" in name or not name.isprintable() or "\0" in value:
        raise _invalid(
            f"env variable {name!r} cannot be given to a process: names need text without `=`, values no NUL"
        )
    if name in _RESERVED_NAMES or name.startswith(_RESERVED):
        raise _invalid(f"env may not set {name}: it changes which programs run. Set it inside the command instead")


def _invalid(message: str) -> SandboxError:
    return SandboxError(message, ErrorCode.VALIDATION_ERROR)
