"""What a process keeps to itself and gives up: its memory and environment, core files, privileges of programs, capabilities.

The standard library alone, and little of it: launchers are hardened too.
"""

import ctypes
import os
import resource
import struct
import sys

ON_LINUX = sys.platform == "linux"

_SET_DUMPABLE, _GET_DUMPABLE, _SET_NO_NEW_PRIVS = 4, 3, 38
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def checked(function: str, *arguments: int | bytes | None) -> int:
    """Call a function of the C library; -1 is an OSError. Numbers are passed as whole registers, as `syscall` reads them."""
    result = int(getattr(_libc, function)(*(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments)))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), function)
    return result


def prctl(option: int, value: int) -> None:
    """Set an option of this process; elsewhere than on Linux there is none."""
    if ON_LINUX:
        checked("prctl", option, value, 0, 0, 0)


def harden() -> None:
    """Close this process to others of its user: memory, environment and descriptors; no core file, no set-user-ID program.

    All but the first are inherited by what it starts; a program that is executed can be looked into again.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl(_SET_DUMPABLE, 0)
    gain_nothing()


def open_up() -> None:
    """Let others of this user look into this process again: its marks could not be read otherwise."""
    prctl(_SET_DUMPABLE, 1)


def is_closed() -> bool:
    """Whether others of this user are kept out of this process."""
    return ON_LINUX and checked("prctl", _GET_DUMPABLE, 0, 0, 0, 0) != 1


def gain_nothing() -> None:
    """Let no program that is executed from here have more privileges than this process: Landlock and seccomp ask for it."""
    prctl(_SET_NO_NEW_PRIVS, 1)


def drop_capabilities(*, but: int = 0) -> None:
    """Give up the capabilities of this thread, and of those it starts; with `gain_nothing` executing brings none back.

    `but` has the bits of those that stay, among the first 32.
    """
    if ON_LINUX:
        header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
        checked("capset", header, struct.pack("6I", but, but, 0, 0, 0, 0))
