"""Workspaces by name: announced, bound, taken over, forgotten; and the way home for calls that came elsewhere."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import update

from forge_tools.errors import ConfigurationError
from forge_tools.model import ExecutionStatus, ToolCategory, ToolSpec, new_id
from forge_tools.model.execution import Claim, Scope, Wakeup
from forge_tools.model.places import Moved, NamedWorkspace, Stranded
from forge_tools.storage import Store
from forge_tools.storage.functions import from_now
from forge_tools.storage.sqlalchemy_tables import execution_queue, workers
from forge_tools.storage.workspaces import MOST_MOVES
from tests.contract.calls import claimed, ended, finish_one, instance, running, scope, statuses

GREP = ToolSpec(name="Grep", description="Search.", category=ToolCategory.FILE, lane="async")
LEASE = 15.0


def named(name: str = "repo", *, shared: bool = False) -> NamedWorkspace:
    return NamedWorkspace(name=name, is_shared=shared, roots=(f"/srv/{name}",))


async def start(store: Store, host: str, *own: NamedWorkspace, lane: Any = "async", name: str = "") -> Scope:
    """A worker on that host, as it starts; its instance has the name of the host unless told otherwise."""
    it = scope(instance=name or f"on-{host}", hostname=host, lane=lane, queues=("default", f"host.{host}"))
    await store.workers.register(instance(it.instance, hostname=host, lane=lane, queues=it.queues))
    await store.catalogue.publish([GREP], it.instance)
    await store.workspaces.announce(it.instance, host, own, within=LEASE)
    return it


async def silence(store: Store, name: str, seconds: float = 100.0) -> None:
    """Let an instance have been silent for so long."""
    statement = update(workers).where(workers.c.id == name).values(last_seen_at=from_now(-seconds))
    await store.database.write(lambda connection: connection.execute(statement))


async def hosts(store: Store) -> dict[str, str | None]:
    return dict((await store.directories.read(LEASE)).hosts)


async def home(store: Store, claim: Claim, at: Scope, name: str = "repo") -> Moved | Stranded | None:
    return await store.workspaces.send_home(claim, name, at, within=LEASE)


async def queue_of(store: Store, claim: Claim) -> Any:
    query = execution_queue.select().where(execution_queue.c.id == claim.id)
    async with store.database.reading() as connection:
        return (await connection.execute(query)).one()


async def test_what_is_bound_has_a_host_and_what_is_shared_has_none(store: Store) -> None:
    assert await hosts(store) == {}
    await start(store, "a", named("repo"), named("docs", shared=True))
    await start(store, "b", named("docs", shared=True))
    assert await hosts(store) == {"repo": "a", "docs": None}
    records = await store.workspaces.list(within=LEASE)
    assert [(one.name, one.hostname, one.is_live, one.roots) for one in records if one.name == "repo"] == [
        ("repo", "a", True, ("/srv/repo",))
    ]


async def test_workers_of_one_host_share_what_is_bound_to_it(store: Store) -> None:
    await start(store, "a", named(), name="first")
    await start(store, "a", named(), name="second", lane="process")
    assert await hosts(store) == {"repo": "a"}
    assert len(await store.workspaces.list(within=LEASE)) == 2


@pytest.mark.parametrize(("here", "there"), [(False, False), (True, False), (False, True)])
async def test_a_second_host_is_refused_what_is_not_shared_on_both(store: Store, here: bool, there: bool) -> None:
    await start(store, "a", named(shared=there))
    with pytest.raises(ConfigurationError, match=r'FORGE_WORKSPACES: workspace repo .*host a.*"shared": true'):
        await start(store, "b", named(shared=here), named("other"))
    assert await hosts(store) == {"repo": None if there else "a"}


async def test_hosts_that_start_at_once_do_not_both_get_it(store: Store) -> None:
    hosts_ = [await start(store, host) for host in "abcd"]
    for name in map(str, range(12)):
        announcing = [store.workspaces.announce(it.instance, it.hostname, [named(name)], within=LEASE) for it in hosts_]
        ends = await asyncio.gather(*announcing, return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["ConfigurationError"] * 3 + ["list"]


@pytest.mark.parametrize("how", ["stopped", "silent"])
async def test_what_a_dead_host_had_is_taken_over_and_said_so(store: Store, how: str) -> None:
    a = await start(store, "a", named())
    await (store.workers.stop(a.instance) if how == "stopped" else silence(store, a.instance))
    assert await hosts(store) == {"repo": "a"}  # remembered: it may come back

    await store.workers.register(instance("on-b", hostname="b"))
    [sentence] = await store.workspaces.announce("on-b", "b", [named()], within=LEASE)

    assert "was bound to host a" in sentence
    assert "host b takes it over" in sentence
    assert await hosts(store) == {"repo": "b"}


async def test_a_host_that_comes_back_finds_what_was_taken_over_taken(store: Store) -> None:
    a = await start(store, "a", named())
    await store.workers.stop(a.instance)
    await start(store, "b", named())
    with pytest.raises(ConfigurationError, match="bound to host b"):
        await start(store, "a", named(), name="again")


async def test_what_a_host_no_longer_has_is_forgotten_when_its_next_worker_starts(store: Store) -> None:
    first = await start(store, "a", named("old"), named("kept"), name="first")
    second = await start(store, "a", named("old"), name="second")
    await store.workers.stop(first.instance)
    await start(store, "a", named("kept"), name="third")
    assert await hosts(store) == {"old": "a", "kept": "a"}  # the second worker still has it
    await store.workers.stop(second.instance)
    await start(store, "a", name="fourth")
    assert await hosts(store) == {"kept": "a"}


async def test_hosts_that_went_long_ago_are_forgotten(store: Store) -> None:
    a = await start(store, "a", named("docs", shared=True))
    await silence(store, a.instance, 31 * 86_400)
    await start(store, "b")
    assert await hosts(store) == {}


async def test_stopped_workers_are_forgotten_once_another_one_has_what_they_shared(store: Store) -> None:
    docs = named("docs", shared=True)
    for host in ("a", "b", "c"):
        it = await start(store, host, docs)
        await store.workers.stop(it.instance)
    silent = await start(store, "d", docs)
    await silence(store, silent.instance)
    await start(store, "e", docs)
    # What is only silent may go on without noticing that it was taken for dead.
    assert [one.hostname for one in await store.workspaces.list(within=LEASE)] == ["e", "d"]


async def test_announcing_again_is_harmless(store: Store) -> None:
    await start(store, "a", named())
    await start(store, "a", named(), named("more"))
    assert await hosts(store) == {"repo": "a", "more": "a"}


async def test_a_call_that_came_to_the_wrong_host_goes_to_the_right_one_uncounted(store: Store) -> None:
    await start(store, "a", named())
    b = await start(store, "b")
    claim = await running(store, by=b)

    assert await home(store, claim, b) == Moved(queue="host.a", hostname="a")

    row = await queue_of(store, claim)
    assert (row.status, row.attempt, row.queue, row.token, row.owner) == ("queued", 0, "host.a", None, None)
    assert await store.queue.claim([Wakeup(claim.id, 0)], b) == []
    assert not await finish_one(store, ended(claim))  # fenced off: it is no longer b's
    [event] = [one for one in await store.history.events(claim.id) if one.kind == "rerouted"]
    assert event.actor == b.instance
    assert event.detail == {"reason": "workspace repo is not on host b", "to": "a", "queue": "host.a"}


async def test_the_right_host_runs_it_as_its_first_attempt(store: Store) -> None:
    a, b = await start(store, "a", named()), await start(store, "b")
    claim = await running(store, by=b)
    await home(store, claim, b)

    again = await claimed(store, claim.id, by=a)

    assert again.attempt == 1
    assert await finish_one(store, ended(again))
    assert [one.hostname for one in await store.history.attempts(claim.id)] == ["a"]


async def test_a_call_that_is_no_longer_the_workers_is_left_alone(store: Store) -> None:
    await start(store, "a", named())
    b = await start(store, "b")
    claim = await running(store, by=b)
    assert await finish_one(store, ended(claim))
    assert await home(store, claim, b) is None


async def test_without_a_live_host_it_is_said_which_one_had_it_and_for_how_long_it_is_silent(store: Store) -> None:
    a, b = await start(store, "a", named()), await start(store, "b")
    await silence(store, a.instance, 240)
    claim = await running(store, by=b)

    stranded = await home(store, claim, b)

    assert isinstance(stranded, Stranded)
    assert "not on host b" in stranded.why
    assert "host a has it, and its workers have been silent for 240 s" in stranded.why
    assert (await statuses(store, [claim.id]))[claim.id] == ExecutionStatus.RUNNING  # still the worker's to end


async def test_what_no_host_ever_had_is_stranded(store: Store) -> None:
    b = await start(store, "b")
    stranded = await home(store, await running(store, by=b), b)
    assert isinstance(stranded, Stranded)
    assert "nor on any other known host" in stranded.why


@pytest.mark.parametrize("name", ["zero \0 and half \ud800", "x" * 1_000_000, ""])
async def test_a_name_that_no_workspace_can_have_is_stranded_in_a_sentence(store: Store, name: str) -> None:
    b = await start(store, "b")
    stranded = await home(store, await running(store, by=b), b, name)
    assert isinstance(stranded, Stranded)
    assert len(stranded.why) < 400


async def test_of_several_hosts_one_whose_lane_fits_is_chosen(store: Store) -> None:
    shared = named(shared=True)
    await start(store, "a", shared, lane="process")
    await start(store, "c", shared)
    b = await start(store, "b")
    for _ in range(4):
        assert await home(store, await running(store, by=b), b) == Moved(queue="host.c", hostname="c")


async def test_calls_spread_over_the_hosts_that_share_a_workspace(store: Store) -> None:
    await start(store, "a", named(shared=True))
    await start(store, "c", named(shared=True))
    b = await start(store, "b")
    moved = {await home(store, await running(store, by=b, id=f"{new_id()[:-1]}{n}"), b) for n in range(4)}
    assert moved == {Moved(queue="host.a", hostname="a"), Moved(queue="host.c", hostname="c")}


async def test_two_workers_that_each_send_a_call_to_the_other_stop(store: Store) -> None:
    """Whatever they announce and whatever they do, a call moves `MOST_MOVES` times at most."""
    a, b = await start(store, "a", named(shared=True)), await start(store, "b", named(shared=True))
    claim = await running(store, by=b)
    last: Moved | Stranded | None = None
    for here, there in [(b, a), (a, b)] * (MOST_MOVES // 2):
        assert await home(store, claim, here) == Moved(queue=f"host.{there.hostname}", hostname=there.hostname)
        claim = await claimed(store, claim.id, by=there)
    assert isinstance(await home(store, claim, b), Moved)
    claim = await claimed(store, claim.id, by=a)
    last = await home(store, claim, a)
    assert isinstance(last, Stranded)
    assert f"already forwarded {MOST_MOVES} times" in last.why


async def test_a_worker_without_it_leaves_the_call_to_another_one_of_its_host(store: Store) -> None:
    await start(store, "a", named(), name="with")
    without = await start(store, "a", name="without")
    claim = await running(store, by=without)
    assert await home(store, claim, without) == Moved(queue="host.a", hostname="a")
    assert await store.queue.claim([Wakeup(claim.id, 0)], without) == []  # not due yet: the other one comes first


async def test_a_worker_alone_on_a_host_that_had_it_does_not_take_the_call_in_a_circle(store: Store) -> None:
    await start(store, "a", named(), name="other-lane", lane="process")
    without = await start(store, "a", name="without")
    stranded = await home(store, await running(store, by=without), without)
    assert isinstance(stranded, Stranded)
    assert "Start all workers on a with the same FORGE_WORKSPACES" in stranded.why


async def test_a_session_works_in_the_workspace_it_was_bound_to_last(store: Store) -> None:
    await start(store, "a", named())
    assert not (await store.directories.read(LEASE)).has_sessions
    for name in ("docs", "repo"):
        await store.workspaces.bind_session("s1", name)
    assert (await store.directories.read(LEASE)).has_sessions
    assert [await store.directories.workspace_of(one) for one in ("s1", "s2")] == ["repo", None]
    await store.workspaces.bind_session("s1", None)
    assert await store.directories.workspace_of("s1") is None


async def test_a_session_stays_bound_when_no_worker_has_any_workspace(store: Store) -> None:
    """Else its calls would run in whatever is the unnamed workspace."""
    await store.workspaces.bind_session("s1", "repo")
    assert (await store.directories.read(LEASE)).has_sessions


async def test_any_text_names_a_session_and_none_of_it_fails_a_call(store: Store) -> None:
    odd = "zero \0 and half \ud800"
    assert await store.directories.workspace_of(odd) is None
    await store.workspaces.bind_session(odd, "repo")
    assert await store.directories.workspace_of(odd) == "repo"
    assert await store.directories.workspace_of(odd[:-1]) is None


@pytest.mark.parametrize("session_id", ["", "x" * 501])
async def test_a_session_id_that_cannot_be_kept_is_refused(store: Store, session_id: str) -> None:
    with pytest.raises(ConfigurationError, match="use 1 to 500"):
        await store.workspaces.bind_session(session_id, "repo")
