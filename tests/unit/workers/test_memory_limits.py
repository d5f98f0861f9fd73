"""A process and its descendants are weighed together, and what they share is counted once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from workers.lanes.process import heavy

MEGABYTE = 2**20
HOLD = "held = b'x' * {size}; print('ready', flush=True); import sys; sys.stdin.read()"
FORK = "import os, sys; held = b'x' * {size}; [os.fork() or (sys.stdin.read(), os._exit(0)) for _ in range(3)]; " + (
    "print('ready', flush=True); sys.stdin.read()"
)
LIMIT = """
from workers.lanes.process_state import limit_this_process
limit_this_process({limit})
try:
    bytearray(2**31)
except MemoryError:
    print("refused")
else:
    print("granted")
"""


@pytest.fixture
def start() -> Iterator[Any]:
    started = []

    def begin(*argv: str) -> int:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    yield begin
    for process in started:
        process.communicate()


def test_what_children_hold_counts(start: Any) -> None:
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD.format(size=60 * MEGABYTE)!r}])"
    light, parent = start(sys.executable, "-c", HOLD.format(size=MEGABYTE)), start(sys.executable, "-c", nested)

    assert heavy({light: 50 * MEGABYTE, parent: 50 * MEGABYTE}) == [parent]
    assert heavy({light: 50 * MEGABYTE, parent: 200 * MEGABYTE}) == []


def test_what_forked_processes_share_counts_once(start: Any) -> None:
    pid = start(sys.executable, "-c", FORK.format(size=60 * MEGABYTE))

    assert heavy({pid: 50 * MEGABYTE}) == [pid]
    assert heavy({pid: 160 * MEGABYTE}) == [], "four processes share the 60 MB"


def test_a_process_that_is_gone_weighs_nothing() -> None:
    assert heavy({2**22 + 1: 0}) == []
    assert heavy({os.getpid(): 0}) == [os.getpid()]


@pytest.mark.parametrize(("limit", "word"), [(2**29, "refused"), (0, "granted")])
def test_an_allocation_beyond_the_limit_is_refused(limit: int, word: str) -> None:
    said = subprocess.check_output([sys.executable, "-c", LIMIT.format(limit=limit)], text=True)

    assert said.strip() == word
