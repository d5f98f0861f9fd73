"""The walls of one process: which paths it reads and writes, and whether it reaches the network. Applied once, for good."""

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from forge_tools.sandbox.walls import landlock

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix/store", "/proc", "/sys")
"""What programs need to run, and may read."""

LINKED = ("/etc/resolv.conf", "/etc/localtime", "/var/lib/ca-certificates", "/home/linuxbrew/.linuxbrew")
"""The same, which lies elsewhere on some systems."""

SHARED_MEMORY = "/dev/shm"  # noqa: S108  the system's, by which processes of one program share memory

_OURS = Path(__file__).parents[2]

_applied: "Profile | None" = None


@dataclass(frozen=True, slots=True)
class Profile:
    """What is open besides the devices, and whether the network is."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False

    def apply(self, scratch: str) -> None:
        """Wall this thread, and what it starts from then on; below `scratch` it may write, too.

        Raises:
            OSError: this machine cannot, or this thread has 16 layers already.
        """
        global _applied  # noqa: PLW0603  it is the process that is walled, once
        with closing(landlock.Ruleset(network=self.network)) as rules:
            rules.allow(self.read, (*landlock.DEVICES, *self.write, scratch))
            rules.enclose()
        _applied = self


def applied() -> Profile | None:
    """The walls of this process."""
    return _applied


def needed_to_run(closed: Iterable[str]) -> tuple[str, ...]:
    """What every program here reads: the system without what of it is `closed`, and where Python and what it imports lie.

    A folder on the import path in which something closed lies is not opened at all: what was not imported before cannot be then.
    """
    shut = tuple(map(os.path.realpath, closed))
    system = [part for folder in (*SYSTEM, *LINKED) for part in parts(os.path.realpath(folder), shut)]
    imports = (path for path in map(os.path.realpath, _import_paths()) if not _holds_any(path, shut))
    found = dict.fromkeys((*system, *imports))
    return tuple(
        path for path in found if not any(f"{path}/".startswith(f"{other}/") for other in found if other != path)
    )


def parts(folder: str, shut: tuple[str, ...]) -> Iterator[str]:
    """The folder, or what lies in it but for what is `shut`: real paths all."""
    if not _holds_any(folder, shut):
        yield folder
    elif folder not in shut and os.path.isdir(folder):
        for name in os.listdir(folder):
            yield from parts(f"{folder}/{name}", shut)


def shared_memory(closed: Iterable[str]) -> tuple[str, ...]:
    """Where it is, unless something closed lies there, too."""
    return () if _holds_any(SHARED_MEMORY, tuple(map(os.path.realpath, closed))) else (SHARED_MEMORY,)


def _import_paths() -> Iterator[str]:
    """Ours are named apart: the folder in which they lie may hold workspaces, too."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable)))
    yield from (*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    yield from (str(_OURS), str(_OURS.parent / "workers"))
    yield from (path for path in sys.path if path)  # an empty one is the current folder, which is not the interpreter's


def _holds_any(folder: str, shut: tuple[str, ...]) -> bool:
    return folder == "/" or any(f"{one}/".startswith(f"{folder}/") for one in shut)
