"""Recovery condemns only what it has itself watched standing still for one lease."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from forge_tools.errors import DatabaseUnavailableError
from forge_tools.model import new_id
from forge_tools.storage.heartbeat import Answers
from workers.services.recovery import LEASES_BETWEEN_SEARCHES, Recovery
from workers.services.service import Leadership

LEASE = 15.0
LOOK = 2.0
ME = "me"


@dataclass
class FakeStore:
    """The transitions and the workers of a store, as far as recovery asks them; beats are moved by hand."""

    instances: dict[str, int] = field(default_factory=dict)
    owning: dict[str, int] = field(default_factory=dict)
    holder: str = ME
    settled: list[str] = field(default_factory=list)
    leases: int = 0
    sweeps: int = 0
    swept: list[str] = field(default_factory=list)
    searches: int = 0
    recovering: Callable[[], object] = lambda: None

    @property
    def transitions(self) -> "FakeStore":
        return self

    @property
    def workers(self) -> "FakeStore":
        return self

    async def take_lease(self, name: str, holder: str, seconds: float) -> bool:
        self.leases += 1
        return holder == self.holder

    async def sweep(self) -> list[str]:
        self.sweeps += 1
        return self.swept

    async def listeners(self, ids: list[str]) -> list[tuple[str, str]]:
        return [("client", id_) for id_ in ids]

    async def beats(self) -> dict[str, int]:
        self.searches += 1
        return self.instances | self.owning

    async def recover(self, instance: str, reason: str, beat: int) -> tuple[list[str], list[str]]:
        assert (self.owning if instance in self.owning else self.instances).pop(instance) == beat
        self.settled.append(instance)
        self.recovering()
        return ["requeued"], []


@dataclass
class Clocks:
    """Says of the database's clock what it is told to say."""

    is_steady: bool = True
    is_calm: bool = True
    followed: int = 0

    async def follow(self) -> None:
        self.followed += 1

    def ask(self) -> None:
        """Nothing to note."""

    def hear(self, there: float) -> bool:
        return self.is_steady


class Watch:
    """Recovery with a clock that moves when told; everybody but `still` beats between two looks."""

    def __init__(self, *still: str) -> None:
        self.now = 1000.0
        self.answer_takes = 0.0
        self.is_over = False
        self.clocks = Clocks()
        self.store = FakeStore({ME: 1, "other": 1, **dict.fromkeys(still, 7)})
        self.still = set(still)
        store: Any = self.store
        clocks: Any = self.clocks
        self.told: list[tuple[str, str]] = []
        self.recovery = Recovery(
            store, ME, LEASE, clocks, Leadership(ME), tell=self.told.extend, clock=lambda: self.now
        )

    async def look(self, seconds: float, every: float = LOOK) -> None:
        """Look once now, and then again and again for that long."""
        end = self.now + seconds
        await self._look()
        while self.now + every <= end:  # no deadline: each round sets its clock on
            self.now += every
            self._beat()
            await self._look()

    async def _look(self) -> None:
        self.recovery.ask()
        self.now += self.answer_takes
        self.recovery.hear(Answers({"now": self.now, "beats": dict(self.store.instances), "over": self.is_over}))
        await self.recovery.step()

    def _beat(self) -> None:
        for instance in self.store.instances.keys() - self.still:
            self.store.instances[instance] += 1


async def test_an_instance_that_stands_still_for_a_lease_is_settled_once() -> None:
    watch = Watch("dead")

    await watch.look(LEASE * 3)

    assert watch.store.settled == ["dead"]


async def test_nobody_is_condemned_before_a_lease_has_passed() -> None:
    watch = Watch("dead")

    await watch.look(LEASE - 1)

    assert watch.store.settled == []


async def test_an_instance_that_beats_is_left_alone() -> None:
    watch = Watch()

    await watch.look(LEASE * 5)

    assert watch.store.settled == []


async def test_a_single_beat_starts_the_lease_again() -> None:
    watch = Watch("slow")
    await watch.look(LEASE - 1)

    watch.store.instances["slow"] += 1
    await watch.look(LEASE - 1)

    assert watch.store.settled == []


async def test_recovery_never_condemns_itself() -> None:
    watch = Watch(ME)

    await watch.look(LEASE * 3)

    assert watch.store.settled == []


async def test_rows_whose_owner_left_no_trace_are_settled_after_a_lease() -> None:
    watch = Watch()
    watch.store.owning["nobody"] = -1

    await watch.look(LEASE - 1)
    assert watch.store.settled == []

    await watch.look(LEASE)
    assert watch.store.settled == ["nobody"]


async def test_rows_of_an_instance_that_stopped_are_settled_a_lease_after_that() -> None:
    watch = Watch()
    await watch.look(LEASE)
    watch.store.owning["other"] = watch.store.instances.pop("other")

    await watch.look(LEASE - 1)
    assert watch.store.settled == []

    await watch.look(LEASE)
    assert watch.store.settled == ["other"]


async def test_a_stopped_instance_that_comes_back_is_left_alone() -> None:
    watch = Watch()
    await watch.look(LEASE)
    watch.store.owning["other"] = watch.store.instances.pop("other")
    await watch.look(LEASE - 1)

    watch.store.instances["other"] = watch.store.owning.pop("other") + 1
    await watch.look(LEASE * 2)

    assert watch.store.settled == []


async def test_the_whole_queue_is_read_for_owners_by_the_oldest_instance_alone_and_seldom() -> None:
    watch = Watch()
    await watch.look(LEASE * 10)
    assert watch.store.searches == 1
    await watch.look(LEASE * LEASES_BETWEEN_SEARCHES)
    assert watch.store.searches == 2

    younger = Watch()
    younger.store.instances["a much older instance"] = 1
    await younger.look(LEASE * 10)
    assert younger.store.searches == 0


async def test_where_nothing_is_dead_or_over_no_lease_is_asked_for() -> None:
    watch = Watch()

    await watch.look(LEASE * 5)

    assert watch.store.leases == 0


@pytest.mark.parametrize("gap", [LEASE, 3600.0])
async def test_after_a_gap_in_its_own_watch_it_waits_a_lease_again(gap: float) -> None:
    """A suspended machine, or a database that was away: what stood still may only have been unable to beat."""
    watch = Watch("silent")
    await watch.look(LEASE - 2)

    watch.now += gap
    await watch.look(LEASE - 2)
    assert watch.store.settled == []

    await watch.look(LEASE)
    assert watch.store.settled == ["silent"]


async def test_after_a_beat_of_its_own_failed_it_waits_a_lease_again() -> None:
    watch = Watch("silent")
    await watch.look(LEASE - 2)

    watch.recovery.missed()
    await watch.look(LEASE - 2)

    assert watch.store.settled == []


async def test_what_came_while_the_clock_was_set_condemns_nobody() -> None:
    watch = Watch("silent")
    await watch.look(LEASE - 2)

    watch.clocks.is_steady = False
    await watch.look(LOOK)
    watch.clocks.is_steady = True
    await watch.look(LEASE - 2)
    assert watch.store.settled == []

    await watch.look(LEASE)
    assert watch.store.settled == ["silent"]


async def test_the_time_that_answers_take_is_not_counted_as_silence() -> None:
    watch = Watch("silent")
    watch.answer_takes = 3.0

    await watch.look(LEASE + 1)
    assert watch.store.settled == []

    await watch.look(LEASE)
    assert watch.store.settled == ["silent"]


async def test_who_gets_slow_answers_alone_condemns_nobody() -> None:
    watch = Watch("silent")
    watch.answer_takes = LEASE / 2 + 1

    await watch.look(LEASE * 10)

    assert watch.store.settled == []


async def test_without_the_lease_it_only_looks_on() -> None:
    watch = Watch("dead")
    watch.store.holder = "other"
    watch.is_over = True

    await watch.look(LEASE * 3)

    assert (watch.store.settled, watch.store.sweeps) == ([], 0)


async def test_who_takes_the_lease_over_acts_on_what_it_saw_without_it() -> None:
    """Or the death of the leaseholder would cost two leases."""
    watch = Watch("dead")
    watch.store.holder = "other"
    await watch.look(LEASE + LOOK)
    assert watch.store.settled == []

    watch.store.holder = ME
    await watch.look(0)

    assert watch.store.settled == ["dead"]


async def test_every_look_that_shows_what_is_over_sweeps() -> None:
    watch = Watch()
    watch.is_over = True
    await watch.look(LOOK * 4)
    assert watch.store.sweeps == 5

    watch.is_over = False
    await watch.look(LOOK * 4)
    assert watch.store.sweeps == 5


async def test_several_dead_instances_are_settled_in_one_look() -> None:
    watch = Watch("one", "two")

    await watch.look(LEASE * 2)

    assert sorted(watch.store.settled) == ["one", "two"]


async def test_what_a_dead_worker_left_on_this_host_is_ended_before_its_rows_are_taken() -> None:
    instances = [new_id(), new_id()]
    dead, other = [subprocess.Popen(["/bin/sleep", "60"], env={"FORGE_INSTANCE": instance}) for instance in instances]
    watch = Watch(instances[0])
    seen: list[int | None] = []
    watch.store.recovering = lambda: seen.extend((dead.poll(), other.poll()))

    await watch.look(LEASE * 2)

    other.kill()
    other.wait()
    assert seen == [-9, None]


async def test_what_cannot_be_ended_here_keeps_nobody_from_settling_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(mark: bytes) -> int:
        raise OSError("Too many open files")

    monkeypatch.setattr("workers.services.recovery.end", fail)
    watch = Watch("dead")

    await watch.look(LEASE * 2)

    assert watch.store.settled == ["dead"]


async def test_whoever_submitted_what_ended_by_it_is_told() -> None:
    watch = Watch()
    watch.is_over, watch.store.swept = True, ["expired"]

    await watch.look(0)

    assert watch.told == [("client", "expired")]


async def test_while_deadlines_cannot_be_judged_nothing_is_settled_but_the_clock_is_followed() -> None:
    watch = Watch("dead")
    watch.clocks.is_calm, watch.is_over = False, True

    await watch.look(LEASE * 3)

    assert (watch.store.settled, watch.store.sweeps) == ([], 0)
    assert watch.clocks.followed > 1


async def test_a_step_that_failed_condemns_nobody_for_another_lease() -> None:
    watch = Watch("silent")
    await watch.look(LEASE - 2)
    watch.is_over = True

    async def away() -> list[str]:
        raise DatabaseUnavailableError("away")

    sweep, watch.store.sweep = watch.store.sweep, away
    with pytest.raises(DatabaseUnavailableError):
        await watch.look(0)
    watch.store.sweep = sweep

    await watch.look(LEASE - 2)
    assert watch.store.settled == []

    await watch.look(LEASE)
    assert watch.store.settled == ["silent"]
