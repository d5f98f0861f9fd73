"""The limit of each phase of a test; what runs at this moment, and what failed, for the process that watches."""

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Generator
from os import ftruncate, getpid, pwrite  # by name: tests put others in their place
from pathlib import Path
from time import monotonic  # by name, as above
from types import FrameType

import pytest

from tests.session_folder import RUN_FOLDER
from tests.waiting import PATIENCE

SECONDS = 120.0
AGAIN_SECONDS = 5.0
STACKS = signal.SIGUSR1
"""Has a test process write the stacks of its threads to its standard error, whatever holds it."""

CAUSE_LINES, CAUSE_CHARS = 3, 300
"""How much is kept of why a test failed: many of them are to fit into the last lines of a log."""

RUNNING, FAILED = "running", "failed"
NOT_INSTALLED = Path(sys.prefix) / "conformance/not-installed"
"""Says that npm could not install the conformance suite."""


class Limits:
    """Ends a phase of a test (setup, call, teardown) that takes too long."""

    def __init__(self) -> None:
        self._failed: dict[str, str] = {}
        self._folder = os.environ.get(RUN_FOLDER)
        self._note, self._noted = -1, 0
        faulthandler.register(STACKS, os.dup(2), all_threads=True)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        before = signal.getsignal(signal.SIGALRM)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            self._write("")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._begin(item, "setup")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._begin(item, "call")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._begin(item, "teardown")

    def _begin(self, item: pytest.Item, phase: str) -> None:
        mark = item.get_closest_marker("timeout")
        seconds = PATIENCE * (mark.args[0] if mark else SECONDS)
        current = f"{item.nodeid} ({phase})"

        def end(_number: int, _frame: FrameType | None) -> None:
            faulthandler.dump_traceback(sys.__stderr__)
            pytest.fail(f"{current} took more than {seconds:.0f} s")

        self._write(f"{monotonic() + seconds:.0f} {current}")
        signal.signal(signal.SIGALRM, end)
        # Again and again: an exception that is raised inside of a callback may be caught there.
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)

    def _write(self, what: str) -> None:
        if self._folder and self._noted != getpid():  # forked since then, or this is the first
            self._note, self._noted = _open_note(Path(self._folder, RUNNING)), getpid()
        if self._note >= 0:
            ftruncate(self._note, 0)
            pwrite(self._note, what.encode(), 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, _cause(report))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Name what failed and why, for those who try it again."""
        self._write(f"{monotonic() + PATIENCE * SECONDS:.0f} what pytest does after the last test")
        if self._folder:
            Path(self._folder, FAILED).write_text(json.dumps(self._failed))


def _cause(report: pytest.TestReport) -> str:
    """Where a test failed, and the first and the last lines of its error."""
    crash = getattr(report.longrepr, "reprcrash", None)
    place = f" at {crash.path}:{crash.lineno}" if crash else ""
    lines = [line for line in (crash.message if crash else report.longreprtext).splitlines() if line.strip()]
    told = lines if len(lines) <= CAUSE_LINES else [lines[0], *lines[1 - CAUSE_LINES :]]
    told = [line[:CAUSE_CHARS].encode("ascii", "backslashreplace").decode() for line in told]  # any stream takes that
    return "\n".join([f"{report.when}{place}", *told])


def _open_note(folder: Path) -> int:
    """The file in which a test process tells what it is at."""
    folder.mkdir(exist_ok=True)
    return os.open(folder / str(getpid()), os.O_CREAT | os.O_WRONLY, 0o600)
