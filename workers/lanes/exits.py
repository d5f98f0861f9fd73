"""How a pool process ended, as far as the kernel or the pool can still say."""

import asyncio
import os
import signal
from typing import Any

from billiard.process import active_children

LOOK_SECONDS = 0.01
PATIENCE = 0.5
"""Seconds within which a process whose handles are closed is over, unless it lives on without them."""


def pool_process(pid: int) -> Any:
    """The pool's own object for that process, or None: asked while the process lives, it outlasts the pool's memory of it."""
    return next((process for process in active_children(_cleanup=lambda: None) if process.pid == pid), None)


async def exit_of(pid: int, process: Any) -> int | None:
    """Its exit status, negative for a signal, once it is over; None where nobody knows, or it lives on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while (code := _exit_code(pid, process)) is None and loop.time() < deadline:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(LOOK_SECONDS)
    return code


def said(code: int | None) -> str:
    """The end of a process in words that follow its name."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with status {code}"
    hint = "; the kernel's out-of-memory killer is one sender" if code == -signal.SIGKILL else ""
    return f"was ended by signal {-code} ({_signal_name(-code)}{hint})"


def _exit_code(pid: int, process: Any) -> int | None:
    """Look without reaping, which is the pool's to do; where it has done so, it remembers."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return None if process is None else process.exitcode
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None if process is None else process.exitcode
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else "unknown"
