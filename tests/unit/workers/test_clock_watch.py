"""A step of the database's clock is told from time that passed, and one worker has the deadlines follow."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from forge_tools.errors import DatabaseUnavailableError
from workers.services import recovery as module
from workers.services.recovery import ClockWatch

LEASE = 15.0


@dataclass
class FakeStore:
    """The clock and the leases of a store, as a watch asks them."""

    ahead: float = 1_000_000.0
    here: float = 50.0
    is_leased: bool = True
    dialect: str = "sqlite"
    delay: float = 0.0
    followed: list[float] = field(default_factory=list)

    @property
    def transitions(self) -> "FakeStore":
        return self

    @property
    def workers(self) -> "FakeStore":
        return self

    async def follow_clock(self, step: float) -> int:
        self.followed.append(step)
        return 1

    async def take_lease(self, name: str, holder: str, seconds: float) -> bool:
        return self.is_leased


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def watch(store: FakeStore) -> ClockWatch:
    stand_in: Any = store
    return ClockWatch(stand_in, "me", LEASE, clock=lambda: store.here)


async def look(watch: ClockWatch, store: FakeStore, times: int = 1) -> list[bool]:
    steady = []
    for _ in range(times):
        store.here += 2.0
        watch.ask()
        store.here += store.delay
        steady.append(watch.hear(store.here + store.ahead))
        await watch.follow()
    return steady


async def test_a_clock_is_steady_once_two_looks_agree(watch: ClockWatch, store: FakeStore) -> None:
    assert await look(watch, store, 3) == [False, True, True]


@pytest.mark.parametrize("step", [3600.0, -3600.0])
async def test_a_step_is_followed_once(watch: ClockWatch, store: FakeStore, step: float) -> None:
    await look(watch, store, 2)
    store.ahead += step

    assert await look(watch, store, 2) == [False, True]
    assert store.followed == [pytest.approx(step)]


async def test_deadlines_are_judged_again_once_they_have_had_time_to_follow(
    watch: ClockWatch, store: FakeStore
) -> None:
    assert not watch.is_calm
    await look(watch, store, 3)
    assert watch.is_calm
    store.ahead += 3600

    calm = [(await look(watch, store), watch.is_calm)[1] for _ in range(4)]

    assert calm == [False, False, True, True]


async def test_two_steps_before_anybody_acts_are_followed_together(watch: ClockWatch, store: FakeStore) -> None:
    await look(watch, store, 2)
    for step in (3600, -1800):
        store.ahead += step
        store.here += 1.0
        watch.ask()
        assert not watch.hear(store.here + store.ahead)

    await watch.follow()

    assert store.followed == [pytest.approx(1800)]


@pytest.mark.parametrize("busy", ["take_lease", "follow_clock"])
async def test_a_step_that_could_not_be_followed_is_followed_later(
    watch: ClockWatch, store: FakeStore, monkeypatch: pytest.MonkeyPatch, busy: str
) -> None:
    async def unavailable(*_: object) -> int:
        raise DatabaseUnavailableError("The database is away")

    await look(watch, store, 2)
    store.ahead += 3600
    with monkeypatch.context() as patched:
        patched.setattr(FakeStore, busy, unavailable)
        with pytest.raises(DatabaseUnavailableError):
            await look(watch, store)

    assert await look(watch, store, 2) == [True, True]
    assert store.followed == [pytest.approx(3600)]


async def test_only_the_holder_of_the_lease_acts(watch: ClockWatch, store: FakeStore) -> None:
    store.is_leased = False
    await look(watch, store, 2)
    store.ahead += 3600

    assert await look(watch, store) == [False]
    assert store.followed == []


async def test_a_clock_that_is_slewed_is_steady(watch: ClockWatch, store: FakeStore) -> None:
    await look(watch, store, 2)
    store.ahead += LEASE / 2

    assert await look(watch, store) == [True]


async def test_after_a_gap_or_a_slow_answer_nothing_is_known(watch: ClockWatch, store: FakeStore) -> None:
    await look(watch, store, 2)
    store.here += LEASE
    store.ahead += 3600
    assert await look(watch, store) == [False]

    store.delay = LEASE
    assert await look(watch, store, 2) == [False, False]
    assert store.followed == []


@pytest.mark.parametrize(("dialect", "followed"), [("sqlite", [3600.0]), ("postgresql", [])])
async def test_calls_in_a_file_keep_their_time_while_the_machine_sleeps_and_those_of_a_server_do_not(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch, dialect: str, followed: list[float]
) -> None:
    """A file sleeps, too; a server has gone on meanwhile."""
    slept, stand_in = 0.0, store
    clocks = SimpleNamespace(monotonic=lambda: store.here, clock_gettime=lambda _: store.here + slept, CLOCK_BOOTTIME=7)
    monkeypatch.setattr(module, "time", clocks)
    store.dialect = dialect
    watch = ClockWatch(stand_in, "me", LEASE)
    await look(watch, store, 2)

    slept = 3600.0
    store.ahead += slept
    await look(watch, store, 2)

    assert store.followed == [pytest.approx(step) for step in followed]
