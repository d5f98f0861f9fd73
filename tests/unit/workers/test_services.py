"""What keeps services going: intervals, wake-ups, the leader, and what a failure means; hours pass in no time."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from forge_tools.errors import DatabaseUnavailableError
from forge_tools.storage.heartbeat import BEATS, Answers, Heartbeat
from tests import virtual_time
from workers.services.service import Heartbeats, Leadership, Lease, Service, ServiceRunner, keep
from workers.services.shells import DesertedShells
from workers.services.upkeep import AuditChain, Retention, RollUps

ME, OLDER = "b", "a"


class Steps(Service):
    """Notes when it took a step, and does what the test says."""

    name = "steps"
    failure = "It cannot be done now"

    def __init__(
        self, *does: float | Exception | None, interval: float | None = 10.0, retry: float | None = None
    ) -> None:
        super().__init__(interval, retry=retry)
        self.at: list[float] = []
        self.lost = 0
        self.is_closed = False
        self._does = list(does)

    async def step(self) -> float | None:
        self.at.append(asyncio.get_running_loop().time())
        done = self._does.pop(0) if self._does else None
        if isinstance(done, Exception):
            raise done
        return done

    def lead_is_lost(self) -> None:
        self.lost += 1

    def close(self) -> None:
        self.is_closed = True


class AtOnce(Steps):
    """The same, from the start."""

    starts_at_once = True


class Led(AtOnce):
    """The same, by the leader."""

    leader_only = True


def kept(service: Steps, seconds: float, *, then: Callable[[Leadership], object] = lambda _: None) -> list[float]:
    """When it took its steps in that time, and as long again after what happens `then`."""

    async def live() -> list[float]:
        leadership, loop = Leadership(ME), asyncio.get_running_loop()
        if isinstance(service, Led):
            leadership.living = frozenset({ME, OLDER})
        began = loop.time()
        task = asyncio.create_task(keep(service, leadership))
        await asyncio.sleep(seconds)
        then(leadership)
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return [round(at - began, 3) for at in service.at]

    return virtual_time.run(live())


def test_a_service_takes_its_first_step_after_an_interval_and_then_one_an_interval() -> None:
    assert kept(Steps(), 16) == [10, 20, 30]


def test_one_that_starts_at_once_does_not_wait_for_the_first() -> None:
    assert kept(AtOnce(), 11) == [0, 10, 20]


def test_a_step_may_say_when_it_goes_on() -> None:
    assert kept(AtOnce(0.5, None), 6) == [0, 0.5, 10.5]


def test_a_service_that_is_woken_takes_a_step_at_once_and_one_without_an_interval_takes_no_other() -> None:
    lazy = Steps(interval=None)
    assert kept(lazy, 1000, then=lambda _: lazy.woken.set()) == [1000]


def test_what_is_woken_during_a_step_takes_another_one() -> None:
    class Busy(Steps):
        """Woken while it is at work."""

        async def step(self) -> float | None:
            if not self.at:
                self.woken.set()
            return await super().step()

    assert kept(Busy(), 11) == [10, 10, 20]


def test_a_step_that_fails_is_logged_with_its_service_and_tried_at_the_next_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert kept(AtOnce(DatabaseUnavailableError("away")), 6) == [0, 10]

    [record] = [one for one in caplog.records if one.name == "workers.services.service"]
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "It cannot be done now")
    said: Any = record
    assert (said.service, said.error) == ("steps", "away")


def test_one_without_an_interval_is_tried_again_after_its_retry() -> None:
    assert kept(AtOnce(DatabaseUnavailableError("away"), interval=None, retry=3.0), 60) == [0, 3]


def test_where_another_worker_leads_no_step_is_taken_and_what_a_leader_knows_is_forgotten() -> None:
    led = Led()

    def older_dies(leadership: Leadership) -> None:
        leadership.living = frozenset({ME})

    assert kept(led, 25, then=older_dies) == [30, 40]
    assert led.lost == 3, "asked at 0, 10 and 20"


def test_a_worker_that_knows_of_nobody_leads() -> None:
    assert Leadership(ME).is_mine


@pytest.mark.parametrize("service", [AuditChain, DesertedShells, Retention, RollUps], ids=lambda one: one.__name__)
def test_what_one_worker_does_for_all_is_the_leaders(service: type[Service]) -> None:
    assert service.leader_only


def test_a_service_that_ends_lets_go_of_what_it_holds() -> None:
    service = Steps()
    kept(service, 1)
    assert service.is_closed


def test_whatever_else_a_step_raises_is_told_to_who_ends_the_worker() -> None:
    told: list[BaseException] = []

    async def live() -> None:
        runner = ServiceRunner(Leadership(ME), told.append)
        runner.start([AtOnce(KeyError("a defect")), other := AtOnce()])
        await asyncio.sleep(25)
        await runner.stop()
        assert len(other.at) == 3

    virtual_time.run(live())
    assert [str(error) for error in told] == ["'a defect'"]


def test_a_loop_that_is_not_a_service_is_guarded_and_ended_as_well() -> None:
    told: list[BaseException] = []

    async def broken() -> None:
        raise KeyError("a defect")

    async def live() -> None:
        runner = ServiceRunner(Leadership(ME), told.append)
        runner.start([], broken(), asyncio.sleep(10**6))
        await asyncio.sleep(1)
        await runner.stop()

    virtual_time.run(live())
    assert len(told) == 1


# The heartbeat.


class Curious(Service):
    """Asks who lives."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def ask(self) -> tuple[Any, ...]:
        return (BEATS,)

    def hear(self, answers: Answers) -> None:
        self.heard.append(answers[BEATS])

    def missed(self) -> None:
        self.heard.append("missed")


class Beaten:
    """The workers of a store, as far as heartbeats go: away as often as it is told to be."""

    def __init__(self, *failures: int) -> None:
        self.failures = set(failures)
        self.beats = 0

    @property
    def workers(self) -> "Beaten":
        return self

    async def beat(self, heartbeat: Heartbeat) -> Answers:
        assert heartbeat.questions == (BEATS,)
        self.beats += 1
        if self.beats in self.failures:
            raise DatabaseUnavailableError("away")
        return Answers({"beats": {ME: self.beats}})


def beaten(*failures: int, lease: float = 15.0) -> tuple[list[Any], list[float], list[bool]]:
    """What was heard in five heartbeats, two seconds apart; when the lease had run out; whether it was held after each second."""
    asker, lapsed, held = Curious(), list[float](), list[bool]()

    async def live() -> None:
        loop = asyncio.get_running_loop()
        began, kept_lease = loop.time(), Lease(lease, clock=loop.time)

        async def on_lapse() -> None:
            lapsed.append(loop.time() - began)

        store: Any = Beaten(*failures)
        heartbeats = Heartbeats(
            store, 2.0, kept_lease, partial(Heartbeat, None), [asker], lapsed=on_lapse, clock=loop.time
        )
        task = asyncio.create_task(keep(heartbeats, Leadership(ME)))
        for _ in range(9):
            await asyncio.sleep(1)
            held.append(kept_lease.is_held)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    virtual_time.run(live())
    return asker.heard, lapsed, held


def test_each_heartbeat_brings_its_answers_to_who_asked() -> None:
    heard, lapsed, held = beaten()
    assert heard == [{ME: n} for n in range(1, 6)]
    assert (lapsed, all(held)) == ([0.0], True), "before the first one nothing is held"


def test_a_heartbeat_that_failed_is_said_to_who_asked_and_the_next_one_counts_again() -> None:
    heard, lapsed, held = beaten(2)
    assert heard == [{ME: 1}, "missed", {ME: 3}, {ME: 4}, {ME: 5}]
    assert (lapsed, all(held)) == ([0.0], True)


def test_a_lease_that_ran_out_is_not_renewed_before_what_that_means_is_done() -> None:
    heard, lapsed, held = beaten(2, 3, lease=3.0)
    assert heard == [{ME: 1}, "missed", "missed", {ME: 4}, {ME: 5}]
    assert lapsed == [0.0, 6.0]
    assert held == [True, True, True, False, False, True, True, True, True]
