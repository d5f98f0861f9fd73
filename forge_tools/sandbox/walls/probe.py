"""What this machine can give: each tier is tried in a child that is thrown away, since what a kernel says of itself is not proof."""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import NoReturn

from forge_tools.sandbox.processes.trees import adopt_orphans
from forge_tools.sandbox.walls import landlock, namespaces
from forge_tools.sandbox.walls.commands import LANDLOCK, NAMESPACE
from forge_tools.sandbox.walls.privileges import ON_LINUX, harden, is_closed
from forge_tools.sandbox.walls.profile import Profile

TIERS = ("plain", LANDLOCK, NAMESPACE)
"""What isolates commands, the least first."""

_HELD, _OPEN = 0, 254


@dataclass(frozen=True, slots=True)
class Given:
    """The highest tier that holds here, the version of Landlock, and why what is above it does not."""

    tier: str
    landlock_abi: int
    why: str = ""
    no_namespaces: str = ""
    """Why commands cannot be kept in them; empty where they can."""

    def of_commands(self, asked: str) -> str:
        """Return the tier for commands that ask for that one: it, or the next higher one there is, else the highest."""
        lacking = {LANDLOCK: self.tier != LANDLOCK, NAMESPACE: bool(self.no_namespaces)}
        here = [tier for tier in TIERS if not lacking.get(tier)]
        return next((tier for tier in here if TIERS.index(tier) >= TIERS.index(asked)), here[-1])

    def __str__(self) -> str:
        abi = f" (Landlock ABI {self.landlock_abi})" if self.tier == "landlock" else ""
        return f"{self.tier}{abi}" + (f": {self.why}" if self.why else "")


def keeps_to(tier: str, network: str) -> bool:
    """Whether walls of that tier keep commands to that network. Landlock knows of no hosts."""
    return network == namespaces.HOST or tier == NAMESPACE or (tier == LANDLOCK and network == namespaces.NONE)


@cache
def given() -> Given:
    """Try the tiers, once for a process; takes milliseconds."""
    if not ON_LINUX:
        return Given("none", 0, *["walls need Linux"] * 2)
    version = landlock.abi()
    trials = (("unshare", lambda: os.getpid() == 1), ("mount", _furnished))
    lacks = (f"{what}: {why}" for what, trial in trials if (why := _refused(partial(_in_namespaces, trial))))
    without = next(lacks, "")
    if not (why := _refused(_walled)):
        return Given("landlock", version, "", without)
    what = f"landlock: {why}"
    if not (closed := _refused(_closed)):
        return Given("plain", version, what, without)
    return Given("none", version, f"{what}; plain: {closed}", without)


def _refused(attempt: Callable[[], bool]) -> str:
    """Return why it fails in a child of ours; empty if it holds."""
    pid = os.fork()
    if pid == 0:
        _end_with(attempt)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == _HELD:
        return ""
    return errno.errorcode.get(code, "does not hold" if code == _OPEN else f"the trial ended with {code}")


def _end_with(attempt: Callable[[], bool]) -> NoReturn:
    code = _OPEN
    try:
        code = _HELD if attempt() else _OPEN
    except OSError as error:
        code = error.errno or _OPEN
    finally:
        os._exit(code)


def _walled() -> bool:
    """Whether a folder that could be opened before is closed behind walls, and no socket can be made."""
    os.listdir("/")
    Profile().apply(os.devnull)
    os.close(os.open(os.devnull, os.O_WRONLY))
    return _fails(lambda: os.listdir("/")) and _fails(lambda: socket.socket(socket.AF_INET).close())


def _furnished() -> bool:
    """Whether a process there gets another root than ours: some systems allow all but to mount."""
    ours = os.stat("/")
    namespaces.furnish(["ro:/usr", "own:/usr"])
    namespaces.close_off()
    return not os.path.samestat(ours, os.stat("/")) and not os.listdir("/usr")


def _in_namespaces(attempt: Callable[[], bool]) -> bool:
    """Make the attempt in a child in namespaces; called in a child of ours. An OSError raised there is raised here."""
    adopt_orphans()
    if (pid := namespaces.fork(network=namespaces.NONE)) == 0:
        _end_with(attempt)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (_HELD, _OPEN):
        raise OSError(code, os.strerror(code))
    return code == _HELD


def _closed() -> bool:
    harden()
    return is_closed()


def _fails(attempt: Callable[[], object]) -> bool:
    with suppress(PermissionError):
        attempt()
        return False
    return True
