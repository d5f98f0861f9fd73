"""How tests wait: for a condition, with a limit, and what did not happen is said."""

import asyncio
import ctypes
import inspect
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PATIENCE = float(os.environ.get("FORGE_TESTS_PATIENCE", "1"))
"""How many times longer than usual every wait may take; above 1 on a machine that is slow."""

Said = str | Callable[[], str]

LIMIT = 60.0
PAUSE, LONGEST_PAUSE = 0.01, 0.2
NEVER = "it never came true"


def wait_until(condition: Callable[[], Any], seconds: float = LIMIT, otherwise: Said = NEVER) -> Any:
    """Ask again and again until there is an answer that is true, and return it."""
    for _ in within(seconds, otherwise):
        asked_at = time.monotonic()
        if found := condition():
            return found
        time.sleep(_pause(asked_at))
    raise AssertionError("unreachable")


async def reached(
    condition: Callable[[], Any],
    seconds: float = LIMIT,
    otherwise: Said = NEVER,
    *,
    when: Callable[[Any], object] = bool,
) -> Any:
    """`wait_until` in an event loop, also for what is a coroutine; one that hangs is given up, too.

    `when` says which answer is waited for.
    """
    try:
        async with asyncio.timeout(seconds * PATIENCE):
            while True:
                asked_at = time.monotonic()
                found = condition()
                if when(found := await found if inspect.iscoroutine(found) else found):
                    return found
                await asyncio.sleep(_pause(asked_at))
    except TimeoutError as error:
        raise _failure(seconds, otherwise) from error


def within(seconds: float, otherwise: Said) -> Iterator[float]:
    """Go round until the time is over, and then fail; each round is told how much is left.

    For a loop with a condition of its own: `while pages and next(time_left)`.
    """
    deadline = time.monotonic() + seconds * PATIENCE
    while (left := deadline - time.monotonic()) > 0:
        yield left
    raise _failure(seconds, otherwise)


def _pause(asked_at: float) -> float:
    """Until it is asked again: as long as the answer took, so that what is waited for has the processor, too."""
    return min(max(PAUSE, time.monotonic() - asked_at), LONGEST_PAUSE)


def _failure(seconds: float, otherwise: Said) -> AssertionError:
    return AssertionError(
        f"not within {seconds * PATIENCE:g} s: {otherwise if isinstance(otherwise, str) else otherwise()}"
    )


def is_alive(pid: int) -> bool:
    """Whether a process of that pid runs; a zombie does not, nor one that is just being collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):  # it went before the file was opened, or after
        return False


def drop_from_memory(path: Path, start: int = 0) -> None:
    """Have the kernel forget what it holds of a file on a disk from there on: asked once, it may keep some pages."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as pages:
        address, size = ctypes.addressof(ctypes.c_char.from_buffer(pages)), len(pages)
        held = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()

        def is_gone() -> bool:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), start, 0, os.POSIX_FADV_DONTNEED)
            assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), held)
            return not any(page & 1 for page in held[start // mmap.PAGESIZE :])

        wait_until(is_gone, otherwise="it stays in memory")
