"""How the benchmark beside other task queues finds out what went wrong, and leaves nothing running."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import driver, environments, runner
from benchmarks.peers.catalogue import Peer, named
from benchmarks.peers.crew import Crew
from benchmarks.peers.subject import BROKER, SLEPT
from benchmarks.peers.turn import MeasureError, Turn
from tests.waiting import wait_until


class Echoing:
    """A peer without workers; `slip` is added to what the last call of a burst returns."""

    def __init__(self, slip: int = 0, refusals: int = 0) -> None:
        self.slip = slip
        self.refusals = refusals

    async def call(self, number: int) -> int:
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError("nobody serves this yet")
        return number

    async def burst(self, numbers: range) -> list[int]:
        return [*numbers[:-1], numbers[-1] + self.slip]

    async def sleeps(self, count: int, seconds: float) -> list[str]:
        return [SLEPT] * count


class Adapter:
    def __init__(self, subject: Echoing) -> None:
        self.subject = subject

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Echoing]:
        yield self.subject


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("go\n"))
    monkeypatch.setattr(driver, "START_PAUSE_SECONDS", 0)


def borrow_this_python(folder: Path, **_: object) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)


def peer(command: str) -> Peer:
    return replace(named("forge_tools"), commands=(command,), adapter="forge", prepare=None)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("measure", list(driver.MEASURES))
def test_every_measure_says_how_long_it_took_and_what_the_client_used(measure: str) -> None:
    readings = asyncio.run(driver.drive(Adapter(Echoing()), measure, 10))
    assert {"seconds", "client_cpu"} <= readings.keys()


@pytest.mark.usefixtures("at_once")
def test_a_call_that_returned_what_another_was_due_is_found_out() -> None:
    with pytest.raises(RuntimeError, match="A call returned"):
        asyncio.run(driver.drive(Adapter(Echoing(slip=1)), "burst", 10))


@pytest.mark.usefixtures("at_once")
def test_a_client_that_is_ready_before_its_workers_tries_again() -> None:
    subject = Echoing(refusals=3)
    asyncio.run(driver.drive(Adapter(subject), "burst", 10))
    assert subject.refusals == 0


def test_a_worker_that_ends_ends_the_measure_with_its_last_words(tmp_path: Path) -> None:
    environment = {BROKER: "unix:///nowhere", "FORGE_HOME": str(tmp_path)}
    turn = Turn(peer("-c 'raise SystemExit(\"my last words\")'"), tmp_path, environment, ())
    with turn.crew(1) as crew, pytest.raises(MeasureError, match="a worker ended; my last words"):
        turn.measure(crew, "burst", 10)


def test_tables_that_cannot_be_made_are_said_with_the_reason(tmp_path: Path) -> None:
    broken = replace(peer(""), prepare="-c 'raise SystemExit(\"no such database\")'")
    with pytest.raises(MeasureError, match="no such database"):
        Turn(broken, tmp_path, {BROKER: ""}, ()).prepare()


def test_what_a_worker_has_started_ends_with_it(tmp_path: Path) -> None:
    code = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    with Crew([[sys.executable, "-c", code]], logs=tmp_path, environment=os.environ) as crew:
        started = wait_until(lambda: (text := crew.logs[0].read_text()).endswith("\n") and text)
        child = psutil.Process(int(started))
    child.wait(10)
    assert not child.is_running()


def test_a_peer_that_cannot_be_installed_has_failed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "huey.txt").write_text("huey @ file:///nowhere/huey.whl\n")
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "bench")
    monkeypatch.setattr(environments.venv, "create", borrow_this_python)
    account = runner.Account(named("huey"))
    account.install(lambda _: None)
    assert "huey cannot be installed" in account.failures["installation"]
    assert not (tmp_path / "bench" / "huey" / environments.STAMP).exists()
