"""The walls of one process: which paths it reads and writes, and whether it reaches the network. Put on once, and never taken off."""

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from forge_tools.sandbox.walls import landlock, seccomp
from forge_tools.sandbox.walls.privileges import drop_capabilities, gain_nothing

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix/store", "/proc", "/sys")
"""What programs need to run, and may read."""

DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",  # noqa: S108  of the system, for processes that share memory
)
"""What they may write to besides; `/dev/shm` is where processes of one program share memory."""

_worn: "Profile | None" = None


@dataclass(frozen=True, slots=True)
class Profile:
    """Paths besides those of the system, and whether the network is open."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False

    def put_on(self, scratch: str) -> None:
        """Wall this thread, and what it starts from then on; below `scratch` it may write, too.

        Raises:
            OSError: this machine cannot, or this thread wears 16 already.
        """
        global _worn  # noqa: PLW0603  it is the process that is walled, once
        gain_nothing()
        drop_capabilities()
        landlock.restrict(
            (*SYSTEM, *import_paths(), *self.read), (*DEVICES, *self.write, scratch), network=self.network
        )
        seccomp.refuse(families=seccomp.INTERNET if self.network else ())
        _worn = self


def worn() -> Profile | None:
    """The walls of this process."""
    return _worn


@cache
def import_paths() -> tuple[str, ...]:
    """Where this interpreter and what it imports lie, and the programs beside it; links on the way, too."""
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable)))  # noqa: PTH120  no Path is wanted
    packages = (*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    return tuple(dict.fromkeys(map(os.path.realpath, _named((*prefixes, *packages, *sys.path)))))


def _named(paths: Iterable[str]) -> Iterable[str]:
    """An empty name is the current folder, which is not the interpreter's, and the root would open everything."""
    return (path for path in paths if path and os.path.realpath(path) != "/")
