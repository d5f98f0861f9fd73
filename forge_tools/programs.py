"""How a program ends: as an interpreter does, except that it clears nothing away and leaves its threads to the kernel.

Python stops threads that still run wherever they are; in a statement of SQLAlchemy's, that crashes the process. And clearing
away what is imported takes as long as the imports, and longer where it is shared with the process that forked this one. So a file that
nobody closed or flushed loses what it still buffers, as in a process of `multiprocessing`.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_UNWRITABLE = (OSError, ValueError, AttributeError)
"""What a stream raises that is full, closed, or none at all."""


_awaited = True
"""Whether `run` waits for threads that are no daemons, as an interpreter does."""


def leave_threads() -> None:
    """Have `run` wait for no thread of this program: one that a module of tools started may never end."""
    global _awaited  # noqa: PLW0603  a program is a process
    _awaited = False


def run(program: Callable[[], int]) -> NoReturn:
    """Run it, and end this process with its exit code."""
    code = _code_of(program)
    if _awaited:
        sys.unraisablehook = _report  # from Python 3.13 on the wait reports an interrupt there instead of raising it
        with suppress(KeyboardInterrupt):  # whoever asks again does not want to wait for threads
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  there is no public name
    atexit._run_exitfuncs()  # noqa: SLF001  nor here
    for stream in (sys.stdout, sys.stderr):
        with suppress(*_UNWRITABLE):
            stream.flush()
    os._exit(code)


def _report(unraisable: "sys.UnraisableHookArgs") -> None:
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)


def _code_of(program: Callable[[], int]) -> int:
    try:
        return program()
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        with suppress(*_UNWRITABLE):
            sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001  as at the end of an interpreter
        sys.excepthook(type(error), error, error.__traceback__)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
