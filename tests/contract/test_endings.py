"""The contract of cancel, sweep, recovery and due work, on every database."""

import pytest

from forge_tools.errors import ExecutionNotFoundError
from forge_tools.records import ExecutionStatus, Ring
from forge_tools.storage import Store
from tests.contract.calls import (
    SCOPE,
    UNKNOWN,
    boot,
    call,
    claimed,
    ended,
    finished,
    overdue,
    running,
    scope,
    submitted,
)


async def test_a_queued_call_is_cancelled_at_once(store: Store) -> None:
    id_ = await submitted(store)
    assert await store.queue.cancel(id_, actor="ann", reason="typo") == "cancelled"
    [stored] = await store.queue.results([id_])
    assert (stored.status, stored.result.error_code) == (ExecutionStatus.CANCELLED, "CANCELLED")
    assert "ann" in str(stored.result.error)
    assert await store.queue.claim([Ring(id_, 0)], SCOPE) == []
    [event] = await store.history.events(id_)
    assert (event.kind, event.actor, event.detail) == ("cancel", "ann", {"reason": "typo"})


async def test_a_running_call_is_asked_to_stop_and_its_owner_hears_until_it_ends(store: Store) -> None:
    await store.workers.register(boot())
    claim, other = await running(store), await running(store)
    assert await store.queue.cancel(claim.id, actor="ann") == "requested"
    assert await store.workers.beat("boot-1") == [Ring(claim.id, 1)]
    assert await store.workers.beat("boot-1") == [Ring(claim.id, 1)]
    assert await store.queue.finish(ended(claim, ExecutionStatus.CANCELLED))
    assert await store.workers.beat("boot-1") == []
    assert await store.queue.statuses([other.id]) == {other.id: ExecutionStatus.RUNNING}


async def test_cancelling_what_is_over_changes_nothing(store: Store) -> None:
    id_ = await submitted(store)
    await finished(store, [id_])
    assert await store.queue.cancel(id_, actor="ann") == "over"
    assert await store.queue.statuses([id_]) == {id_: ExecutionStatus.SUCCEEDED}


@pytest.mark.parametrize("id_", [UNKNOWN, "nope", "", "'; DROP TABLE executions"])
async def test_cancelling_what_does_not_exist_says_so(store: Store, id_: str) -> None:
    with pytest.raises(ExecutionNotFoundError, match="No execution has the id"):
        await store.queue.cancel(id_, actor="ann")


async def test_a_cancelled_retry_keeps_its_earlier_attempt(store: Store) -> None:
    claim = await running(store, max_attempts=3)
    assert await store.queue.finish(ended(claim, ExecutionStatus.FAILED, retry_in=60.0))
    assert await store.queue.cancel(claim.id, actor="ann") == "cancelled"
    attempts = await store.history.attempts(claim.id)
    assert [(a.attempt, a.status) for a in attempts] == [
        (1, ExecutionStatus.FAILED),
        (2, ExecutionStatus.CANCELLED),
    ]
    assert attempts[1].started_at is None
    assert (await store.history.get(claim.id)).attempt == 1


async def test_a_call_that_waited_too_long_expires_and_says_which_queue(store: Store) -> None:
    id_ = await submitted(store, expires_in=-1.0, queue="nightly")
    alive = await submitted(store)
    assert await store.queue.sweep() == 1
    [stored] = await store.queue.results([id_, alive])
    assert (stored.status, stored.result.error_code) == (ExecutionStatus.EXPIRED, "EXPIRED")
    assert "queue 'nightly'" in str(stored.result.error)
    assert await store.queue.sweep() == 0


async def test_a_running_call_never_expires(store: Store) -> None:
    claim = await running(store)
    await overdue(store, claim.id)
    assert await store.queue.sweep() == 0
    assert await store.queue.finish(ended(claim))


async def test_a_queued_call_whose_attempts_are_used_up_is_lost(store: Store) -> None:
    id_ = await submitted(store, max_attempts=0)
    assert await store.queue.sweep() == 1
    assert await store.queue.statuses([id_]) == {id_: ExecutionStatus.LOST}


async def test_a_sweep_takes_no_more_than_its_limit(store: Store) -> None:
    assert await store.queue.submit_many([call(expires_in=-1.0) for _ in range(5)]) == [None] * 5
    assert [await store.queue.sweep(3), await store.queue.sweep(3), await store.queue.sweep(3)] == [3, 2, 0]


async def test_recovery_queues_idempotent_calls_again_and_says_the_others_are_lost(store: Store) -> None:
    await store.workers.register(boot())
    again = await running(store, idempotent=True, max_attempts=3)
    lost = await running(store)
    assert await store.queue.recover("boot-1", "silent for 15 s") == ([again.id], [lost.id])
    assert (await claimed(store, again.id, attempt=1)).attempt == 2
    [stored] = await store.queue.results([lost.id])
    assert (stored.status, stored.result.error_code) == (ExecutionStatus.LOST, "LOST")
    assert "unknown" in str(stored.result.error)
    [attempt] = await store.history.attempts(again.id)
    assert (attempt.status, attempt.worker_id, attempt.hostname, attempt.pid) == (
        ExecutionStatus.LOST, "boot-1", "host-1", 11
    )  # fmt: skip
    assert attempt.started_at is not None
    assert [event.kind for event in await store.history.events(again.id)] == ["requeue"]
    assert [event.kind for event in await store.history.events(lost.id)] == ["lost"]


async def test_recovery_leaves_other_boots_and_repeats_harmlessly(store: Store) -> None:
    mine = await running(store)
    theirs = await running(store, by=scope(boot="boot-2"))
    assert await store.queue.recover("boot-1", "dead") == ([], [mine.id])
    assert await store.queue.recover("boot-1", "dead") == ([], [])
    assert await store.queue.finish(ended(theirs))


async def test_an_idempotent_call_without_attempts_left_is_lost(store: Store) -> None:
    claim = await running(store, idempotent=True, max_attempts=1)
    assert await store.queue.recover("boot-1", "dead") == ([], [claim.id])


async def test_a_call_that_is_not_idempotent_never_runs_again_whatever_attempts_are_left(store: Store) -> None:
    claim = await running(store, idempotent=False, max_attempts=3)
    assert await store.queue.recover("boot-1", "dead") == ([], [claim.id])
    assert await store.queue.claim([Ring(claim.id, 1)], SCOPE) == []


async def test_recovery_gives_a_long_running_call_its_waiting_time_again(store: Store) -> None:
    claim = await running(store, idempotent=True, max_attempts=2)
    await overdue(store, claim.id)
    assert await store.queue.recover("boot-1", "dead") == ([claim.id], [])
    assert await store.queue.sweep() == 0
    assert (await claimed(store, claim.id, attempt=1)).attempt == 2


async def test_the_finish_of_a_recovered_attempt_is_late(store: Store) -> None:
    requeued = await running(store, idempotent=True, max_attempts=3)
    lost = await running(store)
    await store.queue.recover("boot-1", "dead")
    assert await store.queue.finish_many([ended(requeued), ended(lost)]) == [False, False]
    assert not await store.queue.finish(ended(lost, ExecutionStatus.LOST))
    assert await store.queue.statuses([requeued.id, lost.id]) == {
        requeued.id: ExecutionStatus.QUEUED,
        lost.id: ExecutionStatus.LOST,
    }
    assert [event.kind for event in await store.history.events(requeued.id)] == ["requeue", "late"]


async def test_a_recovered_call_whose_cancel_was_asked_ends_as_cancelled(store: Store) -> None:
    claim = await running(store, idempotent=True, max_attempts=3)
    await store.queue.cancel(claim.id, actor="ann")
    await store.queue.recover("boot-1", "dead")
    assert await store.queue.claim([Ring(claim.id, 1)], SCOPE) == []
    assert await store.queue.sweep() == 1
    assert await store.queue.statuses([claim.id]) == {claim.id: ExecutionStatus.CANCELLED}


async def test_due_work_comes_oldest_first_and_within_the_limit(store: Store) -> None:
    ids = [await submitted(store) for _ in range(4)]
    assert await store.queue.due(SCOPE, 3) == [Ring(id_, 0) for id_ in sorted(ids)[:3]]
