"""seccomp: system calls that no body needs, and families of sockets that this one has not asked for."""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Collection
from functools import cache

from forge_tools.sandbox.walls.privileges import checked

NAMESPACES = 0x7E020000
"""Flags of `clone` that make namespaces."""

_SET_SECCOMP, _FILTER = 22, 2
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # of struct seccomp_data; arguments have 8 bytes each
_LOAD, _MASK, _EQUAL, _AT_LEAST, _ANY_OF, _ALWAYS, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x05, 0x06
_X32 = 0x40000000

_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_CALLS = {  # name: (x86_64, aarch64)
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
    "clone": (56, 220),
    "clone3": (435, 435),
    "socket": (41, 198),
    "truncate": (76, 45),
    "open": (2, 0),  # which aarch64 does not have
    "openat": (257, 56),
    "openat2": (437, 437),
    "landlock_create_ruleset": (444, 444),
}
_ELSEWHERE = {"clone", "clone3", "socket", "truncate", "open", "openat", "openat2", "landlock_create_ruleset"}
FORBIDDEN = tuple(name for name in _CALLS if name not in _ELSEWHERE)
INTERNET = frozenset({int(socket.AF_INET), int(socket.AF_INET6), 16})  # AF_NETLINK, which Python names on Linux alone
"""With the family by which programs learn of the interfaces of this machine."""


def is_known() -> bool:
    """Whether the numbers of system calls on this machine are known here."""
    return os.uname().machine in _MACHINES


def number_of(name: str) -> int:
    return _CALLS[name][_MACHINES[os.uname().machine][1]]


def refuse(
    calls: Collection[str] = FORBIDDEN,
    *,
    families: Collection[int] | None = None,
    truncation: bool = True,
    error: int = errno.EPERM,
) -> None:
    """Have the kernel refuse these calls, and the making of namespaces, to this thread and what it starts from then on.

    `families` are those of the sockets it may make, any by default; others are refused with EACCES. Without `truncation` files
    are shortened only by what has opened them to write. `no_new_privs` must be set.
    """
    if not is_known():
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), os.uname().machine)
    filters = program(tuple(calls), None if families is None else frozenset(families), truncation, error)
    loaded = ctypes.create_string_buffer(filters, len(filters))
    header = struct.pack("HxxxxxxQ", len(filters) // 8, ctypes.addressof(loaded))
    checked("prctl", _SET_SECCOMP, _FILTER, header, 0, 0)


@cache
def program(calls: tuple[str, ...], families: frozenset[int] | None, truncation: bool, error: int) -> bytes:
    """Return the filter that `refuse` loads with these; a process that was forked later has it, too."""
    architecture, column = _MACHINES[os.uname().machine]
    refused = [_CALLS[name][column] for name in calls]
    # Another architecture, such as that of 32-bit programs, has other numbers; so has x32, under the same architecture.
    parts = [_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, architecture, 1), _step(_RETURN, _KILL), _step(_LOAD, _NUMBER)]
    if column == 0:
        parts += [_step(_AT_LEAST, _X32, 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    parts += [_step(_EQUAL, number, len(refused) - at) for at, number in enumerate(refused)]
    parts += [_step(_ALWAYS, 1), _step(_RETURN, _ERRNO | error)]
    # A filter cannot read what these calls point to. So they do not exist: the C library falls back on `clone`,
    # programs on `openat`.
    for name in ("clone3",) if truncation else ("clone3", "openat2"):
        parts += [_step(_EQUAL, _CALLS[name][column], 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    parts += [
        _step(_EQUAL, _CALLS["clone"][column], 0, 4),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_ANY_OF, NAMESPACES, 0, 1),
        _step(_RETURN, _ERRNO | errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]
    if not truncation:
        parts += [_step(_EQUAL, _CALLS["truncate"][column], 0, 1), _step(_RETURN, _ERRNO | errno.EACCES)]
        for name, flags in (("openat", 2), ("open", 1)) if column == 0 else (("openat", 2),):
            parts += [
                _step(_EQUAL, _CALLS[name][column], 0, 6),
                _step(_LOAD, _FIRST_ARGUMENT + 8 * flags),
                _step(_MASK, os.O_TRUNC | os.O_ACCMODE),
                _step(_EQUAL, os.O_TRUNC | os.O_RDONLY, 1),
                _step(_EQUAL, os.O_TRUNC | os.O_ACCMODE, 0, 1),  # neither to read nor to write
                _step(_RETURN, _ERRNO | errno.EACCES),
                _step(_RETURN, _ALLOW),
            ]
    if families is not None:
        allowed = [_step(_EQUAL, one, len(families) - number) for number, one in enumerate(families)]
        parts += [
            _step(_EQUAL, _CALLS["socket"][column], 0, len(allowed) + 3),
            _step(_LOAD, _FIRST_ARGUMENT),
            *allowed,
            _step(_RETURN, _ERRNO | errno.EACCES),
            _step(_RETURN, _ALLOW),
        ]
    return b"".join([*parts, _step(_RETURN, _ALLOW)])


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
