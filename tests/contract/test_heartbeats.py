"""The contract of what a worker sees once a heartbeat, on every database."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from forge_tools.errors import StorageError
from forge_tools.model import ExecutionStatus, ToolCategory, ToolSpec
from forge_tools.model.execution import Scope, Wakeup
from forge_tools.storage import Store, open_store
from forge_tools.storage.heartbeat import (
    BEATS,
    CANCELS,
    DEMOTED,
    DISABLED,
    DUE,
    EVER,
    NOW,
    OVER,
    PINNED,
    Answers,
    Heartbeat,
    Question,
    Reach,
    misplaced,
    unchained,
)
from forge_tools.storage.queue.postgres import PostgresHotPath
from forge_tools.storage.queue.sqlite import SqliteHotPath
from forge_tools.storage.sqlalchemy_tables import execution_queue
from tests.contract.calls import (
    SCOPE,
    beat,
    clock_of,
    ended,
    finish_one,
    instance,
    overdue,
    running,
    scope,
    submitted,
)
from tests.contract.sealed import past, seal_all, sealed_past

POOLED = True

GREP = ToolSpec(name="Grep", description="Search", category=ToolCategory.FILE, lane="async")


@pytest.fixture(autouse=True)
async def instances(store: Store) -> None:
    for name in ("instance-1", "instance-2"):
        await store.workers.register(instance(name))


QUESTIONS = (NOW, BEATS, CANCELS, OVER, DEMOTED, DISABLED, PINNED)
MISPLACED = misplaced(["Grep@1"])


async def seen(store: Store, *asked: Question[Any], scope: Scope = SCOPE, **facts: Any) -> Answers:
    """What is answered to these questions, and to all that need no more than their name."""
    return await store.workers.beat(Heartbeat(scope, (*QUESTIONS, *asked), **facts))


async def test_an_idle_stack_shows_who_lives_what_time_it_is_and_nothing_to_do(store: Store) -> None:
    await beat(store, "instance-2")
    answers = await seen(store, DUE, MISPLACED)
    assert (answers[DUE], answers[OVER], answers[MISPLACED], answers[CANCELS], answers[DEMOTED]) == (
        False, False, False, (), frozenset()
    )  # fmt: skip
    assert answers[BEATS]["instance-2"] == 1
    assert answers[NOW] == pytest.approx(await clock_of(store), abs=5)


async def test_a_heartbeat_leaves_in_its_row_what_is_for_others_to_read(store: Store) -> None:
    before = {one.id: (one.answering, one.slots) for one in await store.workers.list()}
    await seen(store, dropped=7, answering=1)
    after = {one.id: (one.answering, one.slots, one.dropped_messages) for one in await store.workers.list()}
    assert (before["instance-1"], after["instance-1"]) == ((None, 4), (1, 1, 7))


async def test_instances_that_stopped_are_not_shown_until_they_beat_again(store: Store) -> None:
    await store.workers.stop("instance-2")
    assert set((await seen(store))[BEATS]) == {"instance-1"}
    await beat(store, "instance-2")
    assert set((await seen(store))[BEATS]) == {"instance-1", "instance-2"}


async def test_what_can_be_claimed_is_shown_to_who_asks_for_it(store: Store) -> None:
    await submitted(store)
    assert (await seen(store, DUE))[DUE]
    for stranger in ({"lane": "process"}, {"queues": ("other",)}, {"tool_keys": ("Read@1",)}, {"tool_keys": ()}):
        assert not (await seen(store, DUE, scope=scope(**stranger)))[DUE]
    assert (await seen(store, DUE, scope=scope(queues=("other", "default"), tool_keys=("Read@1", "Grep@1"))))[DUE]


@pytest.mark.parametrize("question", [DUE, unchained(Reach(EVER, 0))], ids=["due", "unchained"])
async def test_what_nobody_asks_is_not_answered(store: Store, question: Question[bool]) -> None:
    await submitted(store)
    await past(store)
    assert (await seen(store, question))[question]
    with pytest.raises(KeyError):
        (await seen(store))[question]


async def test_what_is_delayed_expired_or_runs_is_not_due(store: Store) -> None:
    await submitted(store, delay=60.0)
    await submitted(store, expires_in=-1.0)
    await running(store)
    assert not (await seen(store, DUE))[DUE]


async def test_what_is_over_is_shown_until_it_is_swept(store: Store) -> None:
    claim = await running(store)
    await overdue(store, claim.id)
    assert not (await seen(store))[OVER]
    await submitted(store, expires_in=-1.0)
    assert (await seen(store))[OVER]
    assert len(await store.transitions.sweep()) == 1
    assert not (await seen(store))[OVER]


async def test_a_cancel_that_meets_nobody_is_over(store: Store) -> None:
    claim = await running(store, idempotent=True, max_attempts=3)
    await store.transitions.cancel(claim.id, actor="ann")
    assert not (await seen(store))[OVER]
    await store.transitions.recover("instance-1", "dead")
    answers = await seen(store, DUE)
    assert (answers[OVER], answers[DUE], answers[CANCELS]) == (True, False, ())
    assert await store.transitions.sweep() == [claim.id]
    assert not (await seen(store))[OVER]


async def test_each_sees_its_own_cancels(store: Store) -> None:
    mine, other = await running(store), await running(store, by=scope(instance="instance-2"))
    for claim in (mine, other):
        await store.transitions.cancel(claim.id, actor="ann")
    assert (await seen(store))[CANCELS] == (Wakeup(mine.id, 1),)
    assert (await seen(store, scope=scope(instance="instance-2")))[CANCELS] == (Wakeup(other.id, 1),)


async def test_demoted_tools_and_calls_of_them_that_still_came_are_shown(store: Store) -> None:
    await store.catalogue.publish([GREP], "instance-1")
    await store.catalogue.demote(GREP, "held the event loop")
    await submitted(store)
    assert (await seen(store))[DEMOTED] == {("Grep", GREP.digest)}
    assert not (await seen(store, misplaced(())))[misplaced(())]
    assert (await seen(store, MISPLACED))[MISPLACED]
    assert await store.catalogue.divert(["Grep@1"]) == 1
    assert not (await seen(store, MISPLACED))[MISPLACED]


async def test_an_instance_whose_row_is_gone_is_told_so_and_not_taken_for_acknowledged(store: Store) -> None:
    with pytest.raises(StorageError, match="instance-9 no longer has a row"):
        await beat(store, "instance-9")
    assert set((await seen(store))[BEATS]) == {"instance-1", "instance-2"}


async def test_of_many_due_rows_those_due_longest_come_whatever_their_tool_or_queue(store: Store) -> None:
    places = [{"queue": queue, "tool_key": key} for queue in ("a", "b") for key in ("Grep@1", "Read@1")]
    ids = [await submitted(store, **place) for place in places]
    late = execution_queue.c.id == ids[0]
    await store.database.write(
        lambda connection: connection.execute(
            update(execution_queue).where(late).values(not_before=execution_queue.c.expires_at)
        )
    )
    by = scope(queues=("b", "a"), tool_keys=("Read@1", "Grep@1"))
    assert await store.queue.due(by, 2) == [Wakeup(id_, 0) for id_ in sorted(ids[1:3])]


async def test_tools_that_are_disabled_are_shown_to_everybody(store: Store) -> None:
    await store.catalogue.publish([GREP], "instance-1")
    assert (await seen(store))[DISABLED] == frozenset()

    await store.catalogue.switch("Grep", is_enabled=False)
    assert (await seen(store))[DISABLED] == {"Grep"}

    await store.catalogue.switch("Grep", is_enabled=True)
    assert (await seen(store))[DISABLED] == frozenset()


async def test_definitions_that_tools_are_pinned_to_are_shown_to_everybody(store: Store) -> None:
    await store.catalogue.publish([GREP], "instance-1")
    assert (await seen(store))[PINNED] == frozenset()

    await store.catalogue.pin("Grep", GREP.digest)
    assert (await seen(store))[PINNED] == {("Grep", GREP.digest)}

    await store.catalogue.pin("Grep", None)
    assert (await seen(store))[PINNED] == frozenset()


async def is_behind(store: Store, reach: Reach | None = None) -> bool:
    question = unchained(reach or await store.audit.reach())
    return (await seen(store, question))[question]


async def test_whoever_asks_sees_whether_anything_waits_for_the_audit_chain(store: Store) -> None:
    assert not await is_behind(store)
    await past(store)
    assert await is_behind(store)
    await seal_all(store)
    assert not await is_behind(store)


async def test_an_attempt_after_which_its_call_goes_on_does_not_wait_for_the_audit_chain(store: Store) -> None:
    claim = await running(store, max_attempts=3, idempotent=True)
    await finish_one(store, ended(claim, ExecutionStatus.FAILED, retry_in=60.0))
    assert not await is_behind(store)


async def test_what_ended_since_is_unsealed_also_if_the_clock_was_set_back(store: Store) -> None:
    await sealed_past(store)
    reach = await store.audit.reach()
    later = replace(reach, end=datetime.now(UTC) + timedelta(hours=1))
    assert not await is_behind(store, later)
    await past(store)
    assert await is_behind(store, reach)
    assert await is_behind(store, later)


async def test_a_heartbeat_that_nobody_waits_for_any_more_does_not_revive_an_instance_that_stops(
    store: Store, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = PostgresHotPath if store.dialect == "postgresql" else SqliteHotPath
    beat, is_under_way, may_go_on, is_over = kind.beat, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(self: Any, rows: Sequence[Heartbeat]) -> Any:
        is_under_way.set()
        await may_go_on.wait()
        try:
            return await beat(self, rows)
        finally:
            is_over.set()

    monkeypatch.setattr(kind, "beat", slow)
    async with await open_store(migrated_url) as its_own:
        beating = asyncio.create_task(seen(its_own))
        await is_under_way.wait()
        beating.cancel()
        stopping = asyncio.create_task(its_own.workers.stop(SCOPE.instance))
        await asyncio.wait([stopping], timeout=0.2)
        may_go_on.set()
        await stopping
        await is_over.wait()
    assert await store.workers.stopped({SCOPE.instance}) == {SCOPE.instance}
