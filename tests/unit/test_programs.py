"""A program ends as an interpreter does: with the same output, on the same streams, and its exit code."""

import shlex
import subprocess
import sys

import pytest

RAISING = """
import atexit
from forge_tools import programs

atexit.register(print, "at exit")

def fail():
    raise {}

programs.run(fail)
"""

INTERRUPTED = """
import atexit, os, signal, threading
from forge_tools import programs

atexit.register(print, "at exit")

def leave_a_thread():
    threading.Thread(target=threading.Event().wait, args=(60,)).start()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    return 3

programs.run(leave_a_thread)
"""


def ended(program: str, streams: str = "") -> "subprocess.CompletedProcess[str]":
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} {streams}"
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize(
    ("raised", "code", "last"),
    [
        ("SystemExit", 0, ""),
        ("SystemExit(3)", 3, ""),
        ("SystemExit('a sentence')", 1, "a sentence"),
        ("ValueError('a mistake')", 1, "ValueError: a mistake"),
        ("KeyboardInterrupt", 130, "KeyboardInterrupt"),
    ],
)
def test_what_a_program_raises_becomes_its_exit_code(raised: str, code: int, last: str) -> None:
    done = ended(RAISING.format(raised))
    assert (done.returncode, done.stdout, done.stderr.strip().rpartition("\n")[2]) == (code, "at exit\n", last)


@pytest.mark.parametrize("raised", ["SystemExit('a sentence')", "ValueError('a mistake')"])
@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
def test_errors_that_nobody_can_read_are_not_put_into_the_output(raised: str, streams: str) -> None:
    done = ended(RAISING.format(raised), streams)
    assert (done.returncode, done.stdout, done.stderr) == (1, "at exit\n", "")


def test_an_interrupt_at_the_end_only_ends_the_wait_for_threads() -> None:
    done = ended(INTERRUPTED)
    assert (done.returncode, done.stdout, done.stderr) == (3, "at exit\n", "")
