"""The watchdog kills what is silent though it could speak, and nothing else."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.fleet import ROOT
from tests.waiting import is_alive, wait_until
from workers import watchdog as module
from workers.engine import Lifeline
from workers.watchdog import FAREWELL, LATE_SECONDS, Silence, is_stopped, watch

LIMIT = 2.0


def silence_after(*looks: tuple[float, bool, bool]) -> float:
    """What a silence adds up to after looks that came so many seconds apart, heard a beat, found the worker stopped."""
    now, silence = 100.0, Silence(100.0)
    for seconds, heard, stopped in looks:
        now += seconds
        silence.count(now, heard=heard, is_stopped=stopped)
    return silence.seconds


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ([(1, True, False), (1, False, False), (1, False, False)], 2),
        ([(1, True, False), (1, False, False), (1, True, False)], 0),
        ([(1, True, False), (1, False, False), (1, False, True), (1, False, False)], 1),
        ([(1, True, False), (1, False, False), (LATE_SECONDS + 1, False, False), (1, False, False)], 1),
        ([(1, False, False), (1, False, False)], 0),
    ],
    ids=["silent", "heard again", "was stopped", "the watchdog itself was late", "has never spoken"],
)
def test_only_time_in_which_the_worker_could_have_spoken_is_silence(
    looks: list[tuple[float, bool, bool]], seconds: float
) -> None:
    assert silence_after(*looks) == seconds


def test_a_stopped_process_and_one_that_is_gone_are_not_silent() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert not is_stopped(process.pid)

    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(process.pid), 60, "it is not stopped")
    process.kill()
    process.wait()
    assert is_stopped(process.pid)


def test_a_watch_ends_with_a_farewell_and_kills_nobody() -> None:
    ours, theirs = socket.socketpair()
    ours.send(b"." + FAREWELL)
    ours.close()
    with theirs:
        watch(theirs.fileno(), os.getppid(), LIMIT)


def test_a_watch_kills_what_has_spoken_and_is_silent(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    silent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(os, "getppid", lambda: silent.pid)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    ours, theirs = socket.socketpair()
    ours.send(b".")
    with ours, theirs:
        watch(theirs.fileno(), silent.pid, 0.2)

    assert silent.wait(30) == -signal.SIGKILL
    assert f"Worker {silent.pid} has made no progress" in capfd.readouterr().err


def worker(tmp_path: Path, work: str) -> "subprocess.Popen[str]":
    """A process with a lifeline, whose watchdog's pid it prints first."""
    program = f"""
        import ctypes, os, sys, time
        from workers.engine import Lifeline
        def raise_in(lifeline):
            lifeline.__exit__(OSError, OSError(), None)
        with Lifeline({LIMIT}) as lifeline:
            lifeline.beat()
            print(lifeline.watchdog, flush=True)
            {work}
    """
    argv = [sys.executable, "-c", textwrap.dedent(program)]
    with (tmp_path / "log").open("w") as log:
        return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)


def watchdog_of(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    with process.stdout as out:
        return int(out.readline())


def test_a_worker_whose_interpreter_is_held_is_killed_with_a_word(tmp_path: Path) -> None:
    process = worker(tmp_path, "ctypes.PyDLL(None).sleep(60)")
    watchdog = watchdog_of(process)

    assert process.wait(60) == -signal.SIGKILL
    wait_until(lambda: not is_alive(watchdog), 60, "the watchdog stays")
    assert f"Worker {process.pid} has made no progress for" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("way", ["os.closerange(3, 256)", "raise_in(lifeline)"])
def test_a_worker_whose_line_ends_without_a_farewell_is_killed_with_a_word(tmp_path: Path, way: str) -> None:
    process = worker(tmp_path, f"{way}; time.sleep(60)")
    watchdog = watchdog_of(process)

    assert process.wait(60) == -signal.SIGKILL
    wait_until(lambda: not is_alive(watchdog), 60, "the watchdog stays")
    assert f"Worker {process.pid} is alive, but its engine is gone" in (tmp_path / "log").read_text()


def test_a_watchdog_ends_with_its_worker_whatever_that_leaves_behind(tmp_path: Path) -> None:
    process = worker(tmp_path, "time.sleep(60)")
    watchdog = watchdog_of(process)
    process.kill()
    process.wait()

    wait_until(lambda: not is_alive(watchdog), 60, "the watchdog stays")
    assert (tmp_path / "log").read_text() == ""


def test_a_watchdog_is_small_and_leaves_when_it_is_let_go() -> None:
    with Lifeline(60.0) as lifeline:
        lifeline.beat()
        assert lifeline.watchdog is not None
        facts = Path(f"/proc/{lifeline.watchdog}/smaps_rollup")
        wait_until(lambda: "Private_Dirty" in facts.read_text(), 60, "it has not started")
        private = sum(int(line.split()[1]) for line in facts.read_text().splitlines() if line.startswith("Private"))
        watchdog = lifeline.watchdog
        assert os.getsid(watchdog) == watchdog

    assert private < 8_000
    assert not is_alive(watchdog)


def test_without_a_limit_there_is_no_watchdog() -> None:
    with Lifeline(None) as lifeline:
        lifeline.beat()

    assert lifeline.watchdog is None


def test_a_beat_into_a_watchdog_that_is_gone_or_behind_is_no_error() -> None:
    with Lifeline(60.0) as lifeline:
        assert lifeline.watchdog is not None
        os.kill(lifeline.watchdog, signal.SIGSTOP)
        for _ in range(5_000):
            lifeline.beat()
        os.kill(lifeline.watchdog, signal.SIGKILL)
        wait_until(lambda: not is_alive(lifeline.watchdog or 0), 60, "it lives")
        lifeline.beat()
