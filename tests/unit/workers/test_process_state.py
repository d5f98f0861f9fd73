"""What a process knows of itself: what it cannot get, and what is not as it was."""

import os
import resource
import subprocess
import sys

import pytest

from forge_tools.model import ExecutionStatus, new_id
from forge_tools.model.execution import Outcome
from workers.lanes.process_state import fell_short

LOOK = """
import ctypes, mmap, os, resource, signal, sys
from workers.lanes.process_state import ProcessState, shortage
def lower(name, soft):
    number = getattr(resource, f"RLIMIT_{name}")
    resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
first = ProcessState()
assert (first.changes(), shortage()) == (None, None), (first.changes(), shortage())
"""


def said(change: str, what: str) -> str:
    """What a process says of itself after that change; in this one it would stay."""
    run = subprocess.run(
        [sys.executable, "-c", f"{LOOK}{change}\nprint({what})"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return run.stdout.strip() or run.stderr


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("lower('NOFILE', 3)", "Too many open files"),
        ("lower('NOFILE', 256)\nfor _ in range(240): os.open(os.devnull, 0)", "of 256 descriptors are left"),
        (
            "lower('NOFILE', 256)\nheld = [os.open(os.devnull, 0) for _ in range(240)]; os.close(held[100])",
            "of 256 descriptors are left",
        ),
        (
            "lower('AS', int(open('/proc/self/statm').read().split()[0]) * mmap.PAGESIZE + 2**22)",
            "Cannot allocate memory",
        ),
    ],
)
def test_it_says_what_it_cannot_get(change: str, why: str) -> None:
    assert why in said(change, "shortage()")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("lower('NOFILE', 64)", "limit NOFILE is 64/"),
        ("lower('FSIZE', 1000)", "limit FSIZE is 1000/unlimited and was unlimited/unlimited"),
        ("ctypes.CDLL(None).signal(signal.SIGCHLD, ctypes.c_void_p(1))", "signals are"),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])", "signals are"),
        ("signal.signal(signal.SIGTERM, lambda *_: None)", "signals are"),
        ("signal.signal(signal.SIGINT, lambda *_: None)", "signals are"),
        ("os.close(0)", "standard streams are closed"),
        ("os.dup2(0, 2)", "standard streams are closed or lead elsewhere"),
        ("sys.stdin.close()", "standard streams are closed"),
    ],
)
def test_it_says_what_is_not_as_it_was(change: str, why: str) -> None:
    assert why in said(change, "first.changes()")


def test_a_limit_that_was_raised_is_a_change_but_no_harm() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    change = f"lower('NOFILE', 64); first = ProcessState(); lower('NOFILE', {hard})"
    assert said(change, "first.changes(only_harm=True)") == "None"
    assert "limit NOFILE is" in said(change, "first.changes()")


def test_a_stream_that_is_redirected_is_no_harm_as_one_that_is_closed_is() -> None:
    assert said("os.dup2(0, 2)", "first.changes(only_harm=True)") == "None"
    assert "standard streams" in said("os.close(0)", "first.changes(only_harm=True)")


def test_a_signal_that_only_libraries_use_is_their_own_affair() -> None:
    assert said("signal.signal(signal.SIGPROF, lambda *_: None)", "first.changes()") == "None"


@pytest.mark.parametrize(
    ("error", "is_short"),
    [
        ("Unexpected error: OSError: [Errno 24] Too many open files: '/x'", True),
        ("Unexpected error: RuntimeError: can't start new thread", True),
        (f"Cannot connect to host [{os.strerror(12)}]", True),
        ("No such file", False),
        (None, False),
    ],
)
def test_a_failure_for_want_of_what_the_process_lacks_is_known_by_its_error(error: str | None, is_short: bool) -> None:
    outcome = Outcome(id=new_id(), attempt=1, token="", status=ExecutionStatus.FAILED, error=error)
    assert fell_short(outcome) is is_short
