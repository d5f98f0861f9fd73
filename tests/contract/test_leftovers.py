"""The contract of cleaning up, on every database: what nobody can need any more is removed, what is in use never is."""

from typing import Any

import pytest
from sqlalchemy import Column, update

from forge_tools.config import Settings
from forge_tools.model.places import NamedWorkspace, ShellStatus
from forge_tools.storage import Store
from forge_tools.storage.functions import from_now
from forge_tools.storage.retention import BOUND_SECONDS, INSTANCE_SECONDS
from forge_tools.storage.sqlalchemy_tables import execution_attempts, session_workspaces, shells, workers
from forge_tools.storage.workspaces import KEPT_SECONDS
from tests.contract.calls import ended, finish_one, instance, running, scope, submitted
from tests.contract.sealed import forge
from tests.contract.test_shells import exited, lost, shell
from workers.services.upkeep import Retention

DAY = 86_400.0


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.storage.retention.LEFTOVERS_AT_ONCE", 2)
    monkeypatch.setattr("forge_tools.storage.retention.PAUSE_SECONDS", 0.0)


async def aged(store: Store, key: Column[str], name: str, **moments: float) -> None:
    """Let so many seconds have passed since those moments of a row."""
    past = {column: from_now(-seconds) for column, seconds in moments.items()}
    statement = update(key.table).where(key == name).values(**past)
    await store.database.write(lambda connection: connection.execute(statement))


async def stopped(store: Store, name: str, *, stopped: float, seen: float) -> None:
    await store.workers.register(instance(name))
    await aged(store, workers.c.id, name, stopped_at=stopped, last_seen_at=seen)


async def instances(store: Store) -> set[str]:
    return {worker.id for worker in await store.workers.list()}


async def test_instances_that_stopped_long_ago_go_and_all_others_stay(store: Store) -> None:
    long = KEPT_SECONDS + DAY
    for number in range(5):
        await stopped(store, f"old-{number}", stopped=long, seen=long)
    await stopped(store, "lately", stopped=KEPT_SECONDS - DAY, seen=KEPT_SECONDS - DAY)
    await stopped(store, "found dead lately", stopped=60.0, seen=long)
    await store.workers.register(instance("asleep"))
    await aged(store, workers.c.id, "asleep", last_seen_at=long)
    await store.workers.register(instance("alive"))

    assert await store.leftovers.clear() == 5
    assert await instances(store) == {"lately", "found dead lately", "asleep", "alive"}
    assert await store.leftovers.clear() == 0


async def test_an_instance_that_still_owns_a_call_stays_until_that_is_settled(store: Store) -> None:
    await store.workers.register(instance("owner"))
    await running(store, by=scope(instance="owner"))
    await aged(store, workers.c.id, "owner", stopped_at=2 * KEPT_SECONDS, last_seen_at=2 * KEPT_SECONDS)

    assert await store.leftovers.clear() == 0

    await store.transitions.recover("owner", "test", 0)
    await forge(store, "DELETE FROM execution_attempts")
    assert await store.leftovers.clear() == 1
    assert await instances(store) == set()


@pytest.mark.parametrize(("since", "stays"), [(DAY, True), (-2 * DAY, False)])
async def test_an_instance_stays_for_a_year_while_attempts_of_its_time_are_kept(
    store: Store, since: float, stays: bool
) -> None:
    claim = await running(store)
    await finish_one(store, ended(claim))
    long = KEPT_SECONDS + 10 * DAY
    await aged(store, execution_attempts.c.execution_id, claim.id, completed_at=long + since)
    await stopped(store, "old", stopped=long, seen=long)
    await stopped(store, "ancient", stopped=INSTANCE_SECONDS + DAY, seen=INSTANCE_SECONDS + DAY)

    await store.leftovers.clear()

    assert await instances(store) == ({"old"} if stays else set())


async def test_what_an_instance_announced_goes_with_it(store: Store) -> None:
    for name, host in (("gone", "a"), ("here", "b")):
        await store.workers.register(instance(name, hostname=host))
        own = NamedWorkspace(name=f"of-{name}", is_shared=False, roots=("/srv",))
        await store.workspaces.announce(name, host, [own], within=15.0)
    await aged(store, workers.c.id, "gone", stopped_at=2 * KEPT_SECONDS, last_seen_at=2 * KEPT_SECONDS)

    await store.leftovers.clear()

    assert [one.name for one in await store.workspaces.list(within=15.0)] == ["of-here"]


async def test_shells_that_ended_long_ago_go_and_those_that_run_never_do(store: Store) -> None:
    ends = {1: exited(shell(1)), 2: lost(shell(2)), 3: shell(3), 4: exited(shell(4))}
    for number, one in ends.items():
        await store.shells.record(shell(number))
        await store.shells.record(one)
        age = DAY if number == 4 else KEPT_SECONDS + DAY
        await aged(store, shells.c.id, one.id, updated_at=age, started_at=2 * KEPT_SECONDS)

    assert await store.leftovers.clear(shells_kept=KEPT_SECONDS + 2 * DAY) == 0
    assert await store.leftovers.clear() == 2
    left = await store.shells.of_session("session-1")
    assert {(one.id, one.status) for one in left} == {
        (ends[3].id, ShellStatus.RUNNING),
        (ends[4].id, ShellStatus.EXITED),
    }


async def test_a_shell_whose_host_comes_back_after_its_row_went_is_told_of_again(store: Store) -> None:
    await store.shells.record(lost(shell()))
    await aged(store, shells.c.id, shell().id, updated_at=2 * KEPT_SECONDS)
    assert await store.leftovers.clear() == 1

    await store.shells.record(shell())

    assert await store.shells.running_of("host-1") == [shell()]


async def test_a_session_keeps_its_workspace_while_a_call_of_it_is_kept(store: Store) -> None:
    for session, age in (("quiet", 2 * BOUND_SECONDS), ("new", DAY), ("in use", 2 * BOUND_SECONDS)):
        await store.workspaces.bind_session(session, "repo")
        await aged(store, session_workspaces.c.session_id, session, bound_at=age)
    await submitted(store, session_id="in use")

    assert await store.leftovers.clear() == 1
    names = ("quiet", "new", "in use")
    assert [await store.directories.workspace_of(name) for name in names] == [None, "repo", "repo"]


async def test_a_worker_clears_away_without_any_rule(store: Store) -> None:
    await stopped(store, "old", stopped=2 * KEPT_SECONDS, seen=2 * KEPT_SECONDS)
    await Retention(store, "instance-1", Settings(), None).step()
    assert await instances(store) == set()


async def test_nothing_is_written_where_nothing_is_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.workers.register(instance())

    async def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a writer was disturbed")

    monkeypatch.setattr(store.database, "write", refused)
    assert await store.leftovers.clear() == 0
