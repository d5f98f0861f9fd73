"""A worker that cannot run calls claims none, and leaves if that lasts."""

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

import workers.services.fitness as module
from forge_tools.model import ExecutionStatus, new_id
from forge_tools.model.execution import Outcome
from tests.unit.workers.child_bench import CLAIM
from workers.services.fitness import LONGEST_RUN, PATIENCE, Fitness

SHORT = "3 of 1024 descriptors are left"


class Bench:
    """A fitness whose process, clock and store are at hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.lacks: str | None = None
        self.is_busy = False
        self.said: list[str | None] = []
        self.announced = 0
        self.signals: list[int] = []
        store: Any = SimpleNamespace(workers=self)
        around: Any = SimpleNamespace(is_held=True, announce=self.announce, running=lambda: [CLAIM] * self.is_busy)
        monkeypatch.setattr(module, "shortage", lambda: self.lacks)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(os, "kill", lambda _, number: self.signals.append(number))
        self.fitness = Fitness(store, "me", around, around, around, interval=1.0)

    def announce(self) -> None:
        self.announced += 1

    async def say_unfit(self, _: str, why: str | None) -> None:
        self.said.append(why)

    async def look(self, after: float = 0.0) -> None:
        self.now += after
        await self.fitness.step()

    def hear(self, error: str | None, count: int = 1) -> None:
        status = ExecutionStatus.FAILED if error else ExecutionStatus.SUCCEEDED
        for _ in range(count):
            outcome = Outcome(id=new_id(), attempt=1, token="", status=status, error=error)
            assert self.fitness.ended(CLAIM, outcome) is outcome


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


async def test_a_shortage_keeps_from_claiming_at_once_and_passes_with_its_cause(bench: Bench) -> None:
    assert bench.fitness.may_claim()
    bench.lacks, bench.is_busy = SHORT, True
    assert not bench.fitness.may_claim()
    await bench.look(10 * PATIENCE)
    bench.lacks = None
    await bench.look(1)
    assert bench.fitness.may_claim()
    assert (bench.said, bench.announced, bench.signals) == ([SHORT, None], 1, [])


async def test_a_shortage_that_no_body_causes_ends_the_worker_once(bench: Bench) -> None:
    bench.lacks = SHORT
    await bench.look()
    assert bench.signals == []
    await bench.look(PATIENCE + 1)
    await bench.look(1)
    assert (bench.signals, bench.fitness.is_left) == ([signal.SIGTERM], True)


async def test_a_run_of_failures_ends_the_worker_though_all_seems_well(bench: Bench) -> None:
    bench.hear("[Errno 24] Too many open files", LONGEST_RUN - 1)
    bench.hear(None)
    bench.hear("[Errno 24] Too many open files", LONGEST_RUN - 1)
    await bench.look()
    assert bench.fitness.may_claim()
    bench.hear("[Errno 24] Too many open files")
    await bench.look()
    assert not bench.fitness.may_claim()
    assert (bench.signals, len(bench.said)) == ([signal.SIGTERM], 1)


async def test_a_worker_that_cannot_start_threads_is_unfit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module.threading.Thread, "start", refuse)
    await bench.look()
    assert bench.said == ["can't start new thread"]
