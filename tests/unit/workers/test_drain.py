"""Draining waits for the engine, and every further signal cuts the wait short."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from workers.app import drain_step, leave_on_signals, state, take_signals


class Engine:
    """An engine whose bodies take a minute, unless it is told to stop at once."""

    def __init__(self, seconds: float = 60.0, *, disturbed_by: signal.Signals | None = None) -> None:
        self.stops: list[float | None] = []
        self._disturbed_by = disturbed_by
        self._seconds = seconds
        self._hurry = threading.Event()

    def stop(self, drain: float | None = None) -> None:
        self.stops.append(drain)
        if drain == 0:
            self._hurry.set()
        elif self._disturbed_by:
            os.kill(os.getpid(), self._disturbed_by)
        self._hurry.wait(self._seconds)


class Parent:
    """Celery's worker, as far as its pool is concerned."""

    def __init__(self) -> None:
        self.terminated = 0

    @property
    def pool(self) -> "Parent":
        return self

    def terminate(self) -> None:
        self.terminated += 1


@pytest.fixture
def parent() -> Parent:
    return Parent()


@pytest.fixture(autouse=True)
def _celery_as_it_was() -> Iterator[None]:
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)}
    yield
    state.should_stop = state.should_terminate = None
    for number, handler in handlers.items():
        signal.signal(number, handler)


def step_of(engine: Engine) -> Any:
    stand_in: Any = engine
    step: Any = drain_step(stand_in)
    return step.__new__(step)  # Celery's own way to make one needs a worker


def test_a_drain_waits_for_the_engine_and_then_ends_the_pool(parent: Parent) -> None:
    engine = Engine(seconds=0.3)
    started = time.monotonic()

    step_of(engine).stop(parent)

    assert 0.3 <= time.monotonic() - started < 20
    assert (engine.stops, parent.terminated) == ([None, 0], 1)


def test_a_drain_does_without_a_thread_where_none_can_be_started(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    engine = Engine(seconds=0.1)
    monkeypatch.setattr(threading.Thread, "start", refuse)

    step_of(engine).stop(parent)

    assert (engine.stops, parent.terminated) == ([None, 0], 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_further_signal_ends_the_wait_at_once(parent: Parent, number: signal.Signals) -> None:
    engine, started = Engine(disturbed_by=number), time.monotonic()
    step = step_of(engine)
    take_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    assert state.should_stop == 0

    step.stop(parent)

    assert time.monotonic() - started < 20
    assert (engine.stops, parent.terminated) == ([None, 0], 1)


def test_a_termination_asked_of_celery_ends_the_wait_too(parent: Parent) -> None:
    engine = Engine()
    state.should_terminate = 1

    step_of(engine).stop(parent)

    assert engine.stops == [None, 0]


def test_a_cold_shutdown_gives_bodies_no_time(parent: Parent) -> None:
    engine = Engine()

    step_of(engine).terminate(parent)

    assert (engine.stops, parent.terminated) == ([0], 1)


def test_sigquit_asks_celery_for_a_cold_shutdown() -> None:
    take_signals()

    os.kill(os.getpid(), signal.SIGQUIT)

    assert state.should_terminate


def test_a_worker_that_starts_is_left_even_if_nothing_heard_the_exit() -> None:
    leave_on_signals()

    with pytest.raises(SystemExit):  # inside a `__del__`, Python would print it and go on
        os.kill(os.getpid(), signal.SIGTERM)

    assert state.should_stop == 0, "Celery's first look ends the worker then"


def test_a_second_signal_does_not_interrupt_what_the_first_one_ends() -> None:
    leave_on_signals()

    with pytest.raises(SystemExit):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGQUIT)

    assert state.should_terminate


def test_a_signal_that_the_starter_ignores_stays_ignored_but_not_for_what_a_worker_starts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave_on_signals()
    take_signals()

    os.kill(os.getpid(), signal.SIGINT)
    child = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True, check=True)

    assert state.should_stop is None
    assert int(child.stdout.split()[1], 16) >> (signal.SIGINT - 1) & 1 == 0
