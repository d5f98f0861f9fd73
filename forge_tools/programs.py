"""How a program ends: as an interpreter does, except that it clears nothing away and leaves its threads to the kernel.

Python stops threads that still run wherever they are; in a statement of SQLAlchemy's, that crashes the process. And clearing
away what is imported takes as long as the imports, and longer where it is shared with the process that forked this one.
"""

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def run(program: Callable[[], int]) -> NoReturn:
    """Run it, and end this process with its exit code."""
    code = _code_of(program)
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  there is no public name
    atexit._run_exitfuncs()  # noqa: SLF001  nor here
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # full, closed, or none
            stream.flush()
    os._exit(code)


def _code_of(program: Callable[[], int]) -> int:
    """Return the exit code, also where it raised instead."""
    try:
        return program()
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001  as at the end of an interpreter
        traceback.print_exc()
    return 1
