"""Reads that never wait, for an event loop, and the file systems that offer them."""

import errno
import os

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)

_offering: dict[int, bool] = {}
"""By device. One that does not offer them (FUSE, NFS) may have to ask somebody, who may be slow, at the open already."""


def meet(fd: int, device: int) -> None:
    """Find out, where one may wait, whether the file system of an open file offers reads that never wait."""
    if device not in _offering:
        _offering[device] = bool(_NOWAIT) and _offers(fd)


def is_offered(device: int) -> bool:
    """Whether a file system is known to offer such reads."""
    return _offering.get(device, False)


def read_at_once(fd: int, size: int) -> bytes | None:
    """Return all bytes of a file of that size; None where the kernel has not all of them in memory, or it has grown."""
    buffer = bytearray(size + 1)
    try:
        del buffer[os.preadv(fd, [buffer], 0, _NOWAIT) :]
    except OSError:
        return None
    return bytes(buffer) if len(buffer) == size else None


def _offers(fd: int) -> bool:
    try:
        os.preadv(fd, [bytearray(1)], 0, _NOWAIT)
    except OSError as error:
        return error.errno == errno.EAGAIN  # it would wait now, and says so
    return True
