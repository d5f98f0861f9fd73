"""How a process ended is told in words, without taking its status from whoever reaps it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from workers.lanes.process import exit_of, said


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "ended"),
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-signal.SIGSEGV, "was ended by signal 11 (SIGSEGV)"),
        (-signal.SIGKILL, "was ended by signal 9 (SIGKILL; the kernel's out-of-memory killer is one sender)"),
        (-99, "was ended by signal 99 (unknown)"),
    ],
)
def test_an_end_is_said_in_words(code: int | None, words: str) -> None:
    assert said(code) == words


@pytest.mark.parametrize(
    ("program", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 11)", -11)]
)
async def test_a_status_is_read_and_left_for_the_one_who_reaps(program: str, code: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", program])

    async_code = None
    deadline = time.monotonic() + 30
    while async_code is None and time.monotonic() < deadline:
        async_code = await exit_of(process.pid, None)

    assert (async_code, process.wait()) == (code, code)


async def test_a_process_that_lives_has_no_status() -> None:
    assert await exit_of(os.getpid(), None) is None


async def test_what_the_pool_has_reaped_it_remembers() -> None:
    class PoolProcess:
        exitcode = -9

    assert await exit_of(2**22 + 1, PoolProcess()) == -9
