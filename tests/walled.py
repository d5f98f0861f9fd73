"""Runs a function in a child of the test that ends with it: what it gives up, and the walls it puts on, are the child's."""

import ctypes
import errno
import os
import traceback
from collections.abc import Callable
from contextlib import suppress

from forge_tools.sandbox.walls import seccomp
from forge_tools.sandbox.walls.privileges import gain_nothing
from forge_tools.sandbox.walls.probe import given

NOBODY = 65_534


def in_child(work: Callable[[], object], *, uid: int | None = None) -> str:
    """Return what `work` returns or raises, as text; as another user where the test may change to one."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "nothing"
        try:
            if uid is not None and os.getuid() == 0:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # who changes his user is closed to his own
            said = str(work())
        except OSError as error:
            said = errno.errorcode.get(error.errno or 0, repr(error))
        except BaseException:
            said = traceback.format_exc()
        finally:
            with suppress(OSError):
                os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return said


def without(work: Callable[[], object], *calls: str, error: int = errno.EPERM) -> str:
    """The same on a machine that refuses these system calls, where what it gives is asked anew."""

    def inside() -> object:
        gain_nothing()
        seccomp.refuse(calls, error=error)
        given.cache_clear()
        return work()

    return in_child(inside)
