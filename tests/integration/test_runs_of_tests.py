"""`python -m tests`: how it handles hangs, second tries, leftovers and unusual surroundings."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fleet import ROOT
from tests.waiting import PATIENCE, is_alive, wait_until

CONFTEST = """
import pytest
from tests.limits import Limits
from tests.processes import pytest_addoption, pytest_runtestloop

def pytest_configure(config):
    config.addinivalue_line("markers", "timeout(seconds): a limit")
    config.pluginmanager.register(Limits())
"""


class Suite:
    """A folder of tests that are run as this project's are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "suite"
        self.folder.mkdir()
        (self.folder / "conftest.py").write_text(CONFTEST)

    def start(
        self, source: str, *words: str, names: Sequence[str] = ("seeded",), **options: Any
    ) -> "subprocess.Popen[str]":
        for name in names:
            (self.folder / f"test_{name}.py").write_text(f"HERE = {str(self.folder)!r}\n{source}")
        defaults = {"env": os.environ, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE} | options
        defaults["env"] = {**defaults["env"], "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        patience = [] if "--patience" in words else ["--patience", str(PATIENCE)]  # measured once
        command = [sys.executable, "-m", "tests", *patience, *words, "-p", "no:cacheprovider"]
        return subprocess.Popen(command, cwd=self.folder, text=True, stderr=subprocess.STDOUT, **defaults)

    def run(self, source: str, *words: str, **options: Any) -> tuple[int, str]:
        """Return its exit code and what it printed."""
        with self.start(source, *words, **options) as run:
            try:
                said, _ = run.communicate()
            except BaseException:
                run.terminate()
                raise
        return run.returncode, said


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


HANGS_THE_SECOND_TIME = """
import os, pathlib, subprocess, tempfile, time, pytest

@pytest.mark.timeout(1)
def test_sleeps():
    mark = pathlib.Path(HERE, "mark")
    if mark.exists():
        lost = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        mark.write_text(f"{lost.pid} {tempfile.gettempdir()}")
        time.sleep(1000)
    mark.touch()
    assert False, "the first time"
"""


def test_a_hang_in_the_second_try_is_cut_and_named_and_leaves_nothing(suite: Suite) -> None:
    code, said = suite.run(HANGS_THE_SECOND_TIME)
    pid, folder = (suite.folder / "mark").read_text().split()
    assert code == 1
    assert "the first time" in said
    assert "test_seeded.py::test_sleeps (call) took more than" in said
    assert "Left behind, now ended: sleep 1000" in said
    assert (is_alive(int(pid)), Path(folder).parent.exists()) == (False, False)


CANNOT_BE_INTERRUPTED = """
import pytest, signal, time

@pytest.mark.timeout(1000)
def test_is_deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGINT, signal.SIGTERM})
    time.sleep(1000)
"""


def test_the_limit_of_a_run_ends_it_with_the_names_and_stacks_of_what_still_runs(suite: Suite) -> None:
    code, said = suite.run(CANNOT_BE_INTERRUPTED, "--minutes", "0.04")
    assert code == 124
    assert "test_seeded.py::test_is_deaf (call) still ran" in said
    assert 'test_seeded.py", line 8 in test_is_deaf' in said


PASSES_THE_SECOND_TIME = """
import pathlib

def test_is_flaky():
    mark = pathlib.Path(HERE, "mark")
    seen = mark.exists()
    mark.touch()
    assert seen, "\\n".join(["why", *("x" * 1000 for _ in range(50)), "it failed"])
"""


@pytest.mark.parametrize(("most", "expected"), [("1", 0), ("0", 1)])
def test_second_tries_are_counted_named_and_limited(suite: Suite, most: str, expected: int) -> None:
    code, said = suite.run(PASSES_THE_SECOND_TIME, "--most-second-tries", most)
    assert code == expected
    assert "Tests that needed a second try: 1.\n  test_seeded.py::test_is_flaky\n" in said
    assert ("More than 0 may not be needed" in said) is (expected == 1)
    end = said.partition("The run took")[2]
    assert "First try of test_seeded.py::test_is_flaky: call at " in end
    assert "AssertionError: why\n" in end
    assert "it failed" in end
    assert len(end) < 2_000


LOOKS_AROUND = """
import locale, os, resource, signal, sys, time

def test_surroundings():
    ignored = [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]
    assert set(ignored) <= {signal.SIGPIPE, signal.SIGXFSZ}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    old = os.umask(0)
    assert os.umask(old) == 0 and old == 0o022
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1024
    assert (os.environ["TERM"], locale.getpreferredencoding(), time.tzname[0]) == ("xterm-256color", "UTF-8", "UTC")
    assert "FORGE_HOME" not in os.environ and "COLUMNS" not in os.environ
    assert os.path.samestat(os.fstat(0), os.stat(os.devnull)) or not sys.stdin.isatty()
    assert not os.isatty(0) and os.getsid(0) != os.getsid(os.getppid())

def test_passes_for_another(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)

def test_watched_is_who_runs():
    assert os.listdir(os.environ["FORGE_TESTS_FOLDER"] + "/running") == [str(os.getpid())]
"""


def become_odd() -> None:
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM})
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.nice(19)
    os.close(0)


def test_a_run_is_the_same_whatever_it_inherits(suite: Suite) -> None:
    odd = {name: value for name, value in os.environ.items() if name not in ("TERM", "LANG")}
    odd |= {"LC_ALL": "de_DE@euro", "TZ": "Asia/Kolkata", "COLUMNS": "11", "FORGE_HOME": "/nowhere"}
    code, said = suite.run(LOOKS_AROUND, preexec_fn=become_odd, env=odd, stdin=None)
    assert code == 0, said


def test_a_run_that_is_told_to_end_leaves_nothing(suite: Suite) -> None:
    mark = suite.folder / "mark"
    mark.touch()
    run = suite.start(HANGS_THE_SECOND_TIME.replace("timeout(1)", "timeout(1000)"))
    wait_until(lambda: len(mark.read_text().split()) == 2, 60, "it never began")
    run.terminate()
    run.communicate()
    pid, folder = mark.read_text().split()
    assert (run.returncode, is_alive(int(pid)), Path(folder).parent.exists()) == (128 + signal.SIGTERM, False, False)


ENDS_ITS_PROCESS = """
import os, pathlib, pytest, signal

@pytest.mark.parametrize("number", [1, 2, 3])
def test_notes_its_name(number, tmp_path):
    mark = pathlib.Path(HERE, "mark")
    if (__name__.endswith("b"), number, mark.exists()) == (True, 2, False):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with pathlib.Path(HERE, f"{tmp_path.parent.name}-names").open("a") as names:
        names.write(__name__[-1])
"""


def test_processes_share_files_and_one_that_dies_fails_the_test_it_was_at_alone(suite: Suite) -> None:
    code, said = suite.run(ENDS_ITS_PROCESS, "--processes", "2", names=("a", "b", "c", "d"))
    assert (code, "1 failed, 11 passed" in said) == (0, True), said
    assert "the process that ran it ended with code -9" in said
    assert "test_b.py::test_notes_its_name[2]" in said
    shares = [path.read_text() for path in suite.folder.glob("p*-names")]
    assert sorted("".join(shares)) == [*"aaabbcccddd"]
    assert all(share.count(name) in (0, 3) for share in shares for name in "acd"), shares


def test_a_run_on_processes_ends_at_the_first_failure_if_it_is_told_to(suite: Suite) -> None:
    source = "def test_fails():\n    assert False\ndef test_goes_on():\n    open(HERE + '/mark', 'w').close()\n"
    code, said = suite.run(source, "--processes", "2", "-x", "--most-second-tries", "0", names=("a", "b"))
    assert (code, "stopping after" in said) == (1, True), said
