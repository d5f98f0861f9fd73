"""What a clock that jumps by an hour does to leases, deadlines and lists of live workers, on every database."""

from collections.abc import AsyncIterator

import pytest

from forge_tools.model.execution import Wakeup
from forge_tools.storage import Store, open_store
from tests.clocks import SetClock, postgres_clock, sqlite_clock
from tests.contract.calls import (
    SCOPE,
    beat,
    call,
    claimed,
    clock_of,
    ended,
    finish_one,
    instance,
    submit_one,
    submitted,
)

HOUR = 3590.0
"""Ids more than an hour off the database's clock are refused."""


@pytest.fixture
def set_clock(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return sqlite_clock(monkeypatch) if migrated_url.startswith("sqlite") else postgres_clock(migrated_url)


@pytest.fixture
async def store(migrated_url: str, set_clock: SetClock) -> AsyncIterator[Store]:
    async with await open_store(migrated_url) as opened:
        yield opened


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_the_clock_says_what_the_database_goes_by(store: Store, set_clock: SetClock, step: float) -> None:
    before = await clock_of(store)
    set_clock(step)

    assert await clock_of(store) - before == pytest.approx(step, abs=30)


async def test_a_lease_of_the_dead_from_before_a_step_back_binds_nobody(store: Store, set_clock: SetClock) -> None:
    assert await store.workers.take_lease("recovery", "dead", 15)
    set_clock(-HOUR)

    assert await store.workers.take_lease("recovery", "living", 15)
    assert not await store.workers.take_lease("recovery", "dead", 15)


async def test_a_lease_a_little_longer_than_ours_is_respected(store: Store) -> None:
    assert await store.workers.take_lease("recovery", "patient", 45)
    assert not await store.workers.take_lease("recovery", "hasty", 15)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_who_was_seen_before_a_step_lives_once_it_beats_and_not_before(
    store: Store, set_clock: SetClock, step: float
) -> None:
    for name in ("instance-1", "instance-2"):
        await store.workers.register(instance(name, queues=(name,)))
    set_clock(step)
    await beat(store, "instance-2")

    assert set((await store.directories.read(15)).queues) == {("instance-2", "async")}
    assert [worker.id for worker in await store.workers.list(seen_within=15)] == ["instance-2"]


async def test_what_waits_is_due_again_after_a_step_back_and_what_is_delayed_is_not(
    store: Store, set_clock: SetClock
) -> None:
    waiting = await submitted(store)
    delayed = call(delay=30.0, expires_in=630.0)
    await submit_one(store, delayed)
    set_clock(-HOUR)
    assert await store.queue.due(SCOPE, 9) == []

    assert await store.transitions.follow_clock(-HOUR) == 2
    assert await store.queue.due(SCOPE, 9) == [Wakeup(waiting, 0)]
    set_clock(-HOUR + 31)
    assert len(await store.queue.due(SCOPE, 9)) == 2


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_what_came_after_a_step_stays_as_it_is(store: Store, set_clock: SetClock, step: float) -> None:
    set_clock(step)
    await submitted(store)

    assert await store.transitions.follow_clock(step) == 0


async def test_what_waits_does_not_expire_by_a_step_forward(store: Store, set_clock: SetClock) -> None:
    waiting = await submitted(store)
    set_clock(HOUR)
    assert await store.transitions.follow_clock(HOUR) == 1

    assert not await store.transitions.sweep()
    assert await store.queue.due(SCOPE, 9) == [Wakeup(waiting, 0)]
    set_clock(HOUR + 700)
    assert await store.transitions.sweep()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_what_runs_is_not_touched_by_a_step(store: Store, set_clock: SetClock, step: float) -> None:
    claim = await claimed(store, await submitted(store))
    set_clock(step)

    assert await store.transitions.follow_clock(step) == 0
    assert await finish_one(store, ended(claim))


async def test_what_is_delayed_stays_delayed_after_a_step_forward(store: Store, set_clock: SetClock) -> None:
    waiting = await submitted(store)
    delayed = call(delay=30.0, expires_in=630.0)
    await submit_one(store, delayed)
    set_clock(HOUR)

    assert await store.transitions.follow_clock(HOUR) == 2
    assert await store.queue.due(SCOPE, 9) == [Wakeup(waiting, 0)]
    set_clock(HOUR + 31)
    assert len(await store.queue.due(SCOPE, 9)) == 2
