"""What this machine can give: each tier is tried in a child that is thrown away, since what a kernel says of itself is not proof."""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from forge_tools.sandbox.walls import landlock
from forge_tools.sandbox.walls.privileges import ON_LINUX, harden, is_closed
from forge_tools.sandbox.walls.profile import Profile

_HELD, _OPEN = 0, 254


@dataclass(frozen=True, slots=True)
class Given:
    """The highest tier that holds here, the version of Landlock, and why what is above it does not."""

    tier: str
    landlock_abi: int
    why: str = ""

    def __str__(self) -> str:
        abi = f" (Landlock ABI {self.landlock_abi})" if self.tier == "landlock" else ""
        return f"{self.tier}{abi}" + (f": {self.why}" if self.why else "")


@cache
def given() -> Given:
    """Try the tiers, once for a process; takes milliseconds."""
    return probe()


def probe() -> Given:
    """Try the tiers."""
    if not ON_LINUX:
        return Given("none", 0, "walls need Linux")
    version = landlock.abi()
    if not (why := _refused(_walled)):
        return Given("landlock", version)
    what = f"landlock: {why}"
    if not (closed := _refused(_closed)):
        return Given("plain", version, what)
    return Given("none", version, f"{what}; plain: {closed}")


def _refused(attempt: Callable[[], bool]) -> str:
    """Why it fails in a child of ours; empty where it holds."""
    pid = os.fork()
    if pid == 0:
        code = _OPEN
        try:
            code = _HELD if attempt() else _OPEN
        except OSError as error:
            code = error.errno or _OPEN
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == _HELD:
        return ""
    return errno.errorcode.get(code, "does not hold" if code == _OPEN else f"the trial ended with {code}")


def _walled() -> bool:
    """Whether a folder that opens before stays closed behind walls, and no socket is to be had."""
    os.listdir("/")  # noqa: PTH208  a name is all that is wanted
    Profile().apply(os.devnull)
    os.close(os.open(os.devnull, os.O_WRONLY))
    return _fails(lambda: os.listdir("/")) and _fails(lambda: socket.socket(socket.AF_INET).close())  # noqa: PTH208  as above


def _closed() -> bool:
    harden()
    return is_closed()


def _fails(attempt: Callable[[], object]) -> bool:
    with suppress(PermissionError):
        attempt()
        return False
    return True
