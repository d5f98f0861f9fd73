"""A tool that blocks leaves the async lane here at once, in SQL soon, and in other workers within their next look."""

import asyncio
import os

import pytest

from forge_tools.errors import DatabaseUnavailableError
from forge_tools.records import Scope, ToolCategory, ToolSpec, new_id
from forge_tools.storage import Store
from forge_tools.storage.looks import Question
from tests.contract.calls import SCOPE, boot, scope, submitted
from tests.waiting import reached
from workers import demotion as module
from workers.demotion import Demotion, leave

GREP = ToolSpec(name="Grep", description="Search.", category=ToolCategory.FILE, lane="async")
READ = ToolSpec(name="Read", description="Read.", category=ToolCategory.FILE, lane="async")
BOTH = scope(tool_keys=("Grep@1", "Read@1"))


@pytest.fixture(autouse=True)
async def _published(store: Store) -> None:
    await store.workers.register(boot())
    await store.catalogue.publish([GREP, READ], "boot-1")


def banning(*specs: ToolSpec) -> tuple[Demotion, set[str]]:
    """A worker's view, and what its lane was told to ban."""
    demotion, banned = Demotion({spec.name: spec for spec in specs}), set[str]()
    demotion.ban = banned.update
    return demotion, banned


async def heard(demotion: Demotion, store: Store) -> None:
    """One look of a worker that hosts what `demotion` knows."""
    demotion.hear(await store.workers.look(Question(SCOPE, banned=demotion.banned)))


def test_a_tool_that_blocks_is_claimed_no_more(store: Store) -> None:
    demotion, _ = banning(GREP, READ)
    assert demotion.within(BOTH) is BOTH

    demotion.note("Grep", "held the event loop")

    assert demotion.within(BOTH) == scope(tool_keys=("Read@1",))


async def test_it_is_written_with_its_waiting_calls_moved_and_other_workers_learn_of_it(store: Store) -> None:
    waiting = await submitted(store)
    here, banned_here = banning(GREP, READ)
    elsewhere, banned_elsewhere = banning(GREP, READ)

    here.note("Grep", "held the event loop")
    await here.step(store)
    await elsewhere.step(store)

    assert (banned_here, banned_elsewhere) == ({"Grep"}, {"Grep"})
    assert elsewhere.within(BOTH) == scope(tool_keys=("Read@1",))
    assert [wakeup.id for wakeup in await store.queue.due(scope(lane="process"), 9)] == [waiting]
    assert {spec.name: spec.lane for spec in await store.catalogue.specs()} == {"Grep": "process", "Read": "async"}


async def test_a_worker_with_another_definition_keeps_its_own(store: Store) -> None:
    mended = ToolSpec(name="Grep", description="Search without blocking.", category=ToolCategory.FILE, lane="async")
    newer, banned = banning(mended)
    await store.catalogue.demote(GREP, "held the event loop")

    await newer.step(store)

    assert (banned, newer.within(SCOPE)) == (set(), SCOPE)


async def test_calls_that_still_come_are_moved_at_the_next_look(store: Store) -> None:
    demotion, banned = banning(GREP)
    await store.catalogue.demote(GREP, "held the event loop")
    keeping = asyncio.create_task(demotion.keep(store, interval=60))
    await heard(demotion, store)
    await reached(lambda: banned)

    late = await submitted(store)
    await heard(demotion, store)

    await reached(
        lambda: store.queue.due(scope(lane="process"), 9), when=lambda due: [wakeup.id for wakeup in due] == [late]
    )
    keeping.cancel()


async def test_a_look_that_shows_nothing_new_costs_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    demotion, _ = banning(GREP)
    await store.catalogue.demote(GREP, "held the event loop")
    await demotion.step(store)
    steps: list[Store] = []
    monkeypatch.setattr(demotion, "step", steps.append)
    keeping = asyncio.create_task(demotion.keep(store, interval=0.01))

    for _ in range(3):
        await heard(demotion, store)
    await asyncio.sleep(0.05)
    keeping.cancel()

    assert steps == []


async def test_what_cannot_be_written_is_written_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    demotion, _ = banning(GREP)
    failures, demote = [DatabaseUnavailableError("away")] * 2, store.catalogue.demote

    async def flaky(spec: ToolSpec, reason: str) -> None:
        if failures:
            raise failures.pop()
        await demote(spec, reason)

    monkeypatch.setattr(store.catalogue, "demote", flaky)
    keeping = asyncio.create_task(demotion.keep(store, interval=0.02))
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.02)

    demotion.note("Grep", "held the event loop")
    await reached(lambda: not demotion._unwritten)
    keeping.cancel()

    assert await store.catalogue.demoted() == {("Grep", GREP.digest)}


async def test_a_worker_of_the_process_lane_has_nothing_to_do(store: Store) -> None:
    await store.catalogue.demote(GREP, "held the event loop")
    demotion = Demotion({})

    demotion.note("Grep", "cannot be")
    await demotion.step(store)

    in_processes: Scope = scope(lane="process")
    assert demotion.within(in_processes) is in_processes


async def test_leaving_takes_its_last_steps_and_ends_even_if_they_fail_or_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    taken: list[str] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.1)

    async def fail() -> None:
        taken.append("fails")
        raise DatabaseUnavailableError("away")

    async def hang() -> None:
        taken.append("hangs")
        await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await leave("tool X held its event loop", new_id(), fail(), hang())

    assert (taken, codes) == (["fails", "hangs"], [75])
