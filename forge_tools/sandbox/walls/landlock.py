"""Landlock: which files this thread, and what it starts from then on, may open. Rules only ever narrow, in 16 layers at most."""

import errno
import os
import stat
import struct
from collections.abc import Iterable

from forge_tools.sandbox.walls import seccomp
from forge_tools.sandbox.walls.privileges import ON_LINUX, checked, drop_capabilities, gain_nothing

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""What programs may write to in addition."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

READ = _EXECUTE | _READ_FILE | _READ_DIR
_ABI_1 = (1 << 13) - 1
_SINCE = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_SCOPES, _TCP = (1 << 0) | (1 << 1), (1 << 0) | (1 << 1)  # abstract sockets and signals; bind and connect
_SCOPES_SINCE, _TCP_SINCE = 6, 4


def abi() -> int:
    """The version that this kernel offers; 0 where it offers none."""
    if not ON_LINUX:
        return 0
    try:
        return checked("syscall", _CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def write_rights(version: int) -> int:
    """Every right to files that this version knows."""
    return _ABI_1 | sum(right for since, right in _SINCE.items() if version >= since)


def prepare() -> None:
    """Do once what each process that is forked from here would do for itself before it puts these walls on."""
    for network in (True, False):
        seccomp.program(seccomp.FORBIDDEN, _families(network), bool(write_rights(abi()) & _TRUNCATE), errno.EPERM)


class Ruleset:
    """What Landlock lets a thread open: nothing but what lies below these paths. It is made once, for any number of threads.

    They also connect to no TCP port without `network`, and reach no abstract socket and no process outside: as far as the
    `version`, by default that of the kernel, can.
    """

    def __init__(self, *, network: bool, version: int | None = None) -> None:
        """Make one that opens nothing."""
        self._network = network
        version = abi() if version is None else version
        self._rights = write_rights(version)
        tcp = _TCP if version >= _TCP_SINCE and not network else 0
        scopes = _SCOPES if version >= _SCOPES_SINCE else 0
        known = 24 if version >= _SCOPES_SINCE else 16 if version >= _TCP_SINCE else 8  # bytes: more are refused
        attributes = struct.pack("QQQ", self._rights, tcp, scopes)[:known]
        self._handle = checked("syscall", _CREATE_RULESET, attributes, len(attributes), 0)

    def allow(self, read: Iterable[str], write: Iterable[str]) -> None:
        """Open more; a path that is not there is left out."""
        for paths, allowed in ((read, READ), (write, self._rights)):
            for path in paths:
                _allow(self._handle, path, allowed & self._rights)

    def enclose(self) -> None:
        """Put all walls of this tier around this thread and what it starts: these files, no capability, few system calls."""
        gain_nothing()
        drop_capabilities()
        checked("syscall", _RESTRICT_SELF, self._handle, 0)
        seccomp.refuse(families=_families(self._network), truncation=bool(self._rights & _TRUNCATE))

    def close(self) -> None:
        """Release it; the walls that it put on stay."""
        os.close(self._handle)
        self._handle = -1


def _families(network: bool) -> frozenset[int]:
    return seccomp.INTERNET if network else frozenset()


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not on this machine, or not for this user anyway
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES  # the kernel refuses a rule with any other right to a file
        checked("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)
