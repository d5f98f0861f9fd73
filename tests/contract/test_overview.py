"""The contract of what an operator watches, on every database."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from forge_tools.model import ExecutionStatus, ToolCategory, ToolSpec
from forge_tools.model.execution import Wakeup
from forge_tools.model.overview import Overview, QueueLoad, StuckReason
from forge_tools.storage import Store
from forge_tools.storage.functions import from_now
from forge_tools.storage.sqlalchemy_tables import execution_attempts, execution_queue, workers
from tests.contract.calls import claimed, ended, finish_one, instance, running, scope, submitted

GREP = ToolSpec(name="Grep", description="Search.", category=ToolCategory.FILE, lane="async")


async def seen(store: Store, window: float = 60.0) -> Overview:
    return await store.overviews.read(window=window, lease=15, patience=10)


async def queue(store: Store, name: str = "default", lane: str = "async") -> QueueLoad:
    return next(one for one in (await seen(store)).queues if (one.queue, one.lane) == (name, lane))


async def finished(store: Store, status: ExecutionStatus, duration_ms: float = 5.0, **call: Any) -> str:
    claim = await running(store, by=scope(tool_keys=("Grep@1", "Read@1")), **call)
    code = None if status == ExecutionStatus.SUCCEEDED else "BROKEN"
    await finish_one(store, ended(claim, status, duration_ms=duration_ms, error_code=code))
    return claim.id


async def write(store: Store, statement: Any) -> None:
    await store.database.write(lambda connection: connection.execute(statement))


@pytest.fixture
async def hosts(store: Store) -> None:
    for name, queues in (("instance-1", ("default", "background")), ("instance-2", ("default", "host.host-1"))):
        await store.workers.register(replace(instance(name, concurrency=4), queues=queues))
        await store.catalogue.publish([GREP], name)


async def test_nothing_is_to_be_seen_where_nothing_is(store: Store) -> None:
    found = await seen(store)
    assert (found.total, found.tools, found.failures, found.workers) == (None, (), (), ())
    assert (found.queues, found.stuck, found.demoted, found.calls_per_second) == ((), (), (), 0.0)


async def test_workers_are_seen_with_what_they_run_until_they_stop(store: Store, hosts: None) -> None:
    await running(store)
    await running(store)
    assert [(one.worker.id, one.running) for one in (await seen(store)).workers] == [
        ("instance-1", 2),
        ("instance-2", 0),
    ]
    await store.workers.stop("instance-1")
    assert [one.worker.id for one in (await seen(store)).workers] == ["instance-2"]


async def test_a_queue_is_seen_with_what_waits_what_comes_later_and_who_serves_it(store: Store, hosts: None) -> None:
    await running(store)
    await submitted(store)
    await submitted(store, delay=60.0)
    found = await queue(store)
    assert (found.waiting, found.later, found.running) == (1, 1, 1)
    assert (found.workers, found.slots, found.free) == (2, 8, 7)
    assert found.oldest_seconds is not None
    assert 0 <= found.oldest_seconds < 30


async def test_what_waits_where_nobody_serves_is_seen_and_silent_workers_serve_nothing(
    store: Store, hosts: None
) -> None:
    await submitted(store, queue="gpu")
    await submitted(store)
    assert (await queue(store, "gpu")).workers == 0
    await write(store, update(workers).values(last_seen_at=from_now(-16.0)))
    assert ((await queue(store)).workers, (await queue(store)).free) == (0, 0)
    assert len((await seen(store)).workers) == 2


async def test_idle_queues_are_seen_if_they_are_served_and_not_a_hosts_own(store: Store, hosts: None) -> None:
    assert [(one.queue, one.lane) for one in (await seen(store)).queues] == [
        ("background", "async"), ("default", "async")
    ]  # fmt: skip


async def test_figures_are_of_what_ended_within_the_window_whenever_it_was_asked(store: Store, hosts: None) -> None:
    for number in range(4):
        await finished(store, ExecutionStatus.SUCCEEDED, duration_ms=10.0 * number)
    await finished(store, ExecutionStatus.FAILED, tool="Read", tool_key="Read@1")
    await submitted(store)
    found = await seen(store)
    assert [(one.key, one.calls, one.failed) for one in found.tools] == [("Grep", 4, 0), ("Read", 1, 1)]
    assert found.total is not None
    assert (found.total.calls, found.total.duration_ms.p50, found.tools[0].duration_ms.max) == (5, 10.0, 30.0)
    assert found.calls_per_second == pytest.approx(5 / 60)

    await write(store, update(execution_attempts).values(completed_at=from_now(-30.0)))
    assert (await seen(store, window=20)).total is None
    assert (await seen(store, window=40)).total == found.total


async def test_failures_are_counted_by_tool_and_error_the_most_first(store: Store, hosts: None) -> None:
    await finished(store, ExecutionStatus.SUCCEEDED)
    await finished(store, ExecutionStatus.FAILED)
    example = await finished(store, ExecutionStatus.FAILED)
    await finished(store, ExecutionStatus.LOST)
    first, second = (await seen(store)).failures
    assert (first.tool, first.status, first.error_code, first.calls) == ("Grep", ExecutionStatus.FAILED, "BROKEN", 2)
    assert (first.example, second.status, second.calls) == (example, ExecutionStatus.LOST, 1)


async def test_an_attempt_that_is_followed_by_another_is_no_call_that_ended(store: Store, hosts: None) -> None:
    claim = await running(store, max_attempts=3)
    await finish_one(store, ended(claim, ExecutionStatus.FAILED, retry_in=0.0))
    assert (await seen(store)).total is None
    again = await claimed(store, claim.id, attempt=1)
    await finish_one(store, ended(again))
    found = (await seen(store)).total
    assert found is not None
    assert (found.calls, found.succeeded) == (1, 1)


async def test_what_does_not_move_is_seen_too(store: Store, hosts: None) -> None:
    await submitted(store)
    await write(store, update(execution_queue).values(not_before=from_now(-11.0)))
    [stuck] = (await seen(store)).stuck
    assert (stuck.reason, stuck.tool) == (StuckReason.NOT_TAKEN, "Grep")


async def test_a_tool_that_blocked_is_seen_while_a_worker_hosts_that_definition(store: Store, hosts: None) -> None:
    await store.catalogue.demote(GREP, "held the event loop")
    [found] = (await seen(store)).demoted
    assert (found.tool, found.version, found.reason) == ("Grep", "1.0.0", "held the event loop")
    for name in ("instance-1", "instance-2"):
        await store.catalogue.publish([GREP.model_copy(update={"version": "1.1.0"})], name)
    assert (await seen(store)).demoted == ()


async def test_many_calls_that_run_are_counted_once_each(store: Store, hosts: None) -> None:
    ids = [await submitted(store) for _ in range(20)]
    await store.queue.claim([Wakeup(id_, 0) for id_ in ids[:15]], scope(instance="instance-2"))
    found = await seen(store)
    assert {one.worker.id: one.running for one in found.workers} == {"instance-1": 0, "instance-2": 15}
    assert [(one.waiting, one.running, one.free) for one in found.queues if one.queue == "default"] == [(5, 15, 4)]
