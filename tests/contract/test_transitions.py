"""The contract of cancel, sweep, recovery and due work, on every database."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import update

from forge_tools.errors import ExecutionNotFoundError
from forge_tools.model import ExecutionStatus
from forge_tools.model.execution import Claim, Wakeup
from forge_tools.storage import Store
from forge_tools.storage.functions import from_now
from forge_tools.storage.sqlalchemy_tables import execution_queue, workers
from tests.contract.calls import (
    SCOPE,
    UNKNOWN,
    beat,
    call,
    claimed,
    ended,
    finish_one,
    finished,
    instance,
    overdue,
    running,
    scope,
    statuses,
    submitted,
)
from tests.contract.sealed import forge
from tests.contract.statements import noted


async def test_a_queued_call_is_cancelled_at_once(store: Store) -> None:
    id_ = await submitted(store)
    assert await store.transitions.cancel(id_, actor="ann", reason="typo") == "cancelled"
    [stored] = await store.queue.results([id_])
    assert ((await store.history.get(id_)).status, stored.error_code) == (ExecutionStatus.CANCELLED, "CANCELLED")
    assert "ann" in str(stored.error)
    assert await store.queue.claim([Wakeup(id_, 0)], SCOPE) == []
    [event] = await store.history.events(id_)
    assert (event.kind, event.actor, event.detail) == ("cancel", "ann", {"reason": "typo"})


async def test_a_running_call_is_asked_to_stop_and_its_owner_hears_until_it_ends(store: Store) -> None:
    await store.workers.register(instance())
    claim, other = await running(store), await running(store)
    assert await store.transitions.cancel(claim.id, actor="ann") == "requested"
    assert await beat(store, "instance-1") == [Wakeup(claim.id, 1)]
    assert await beat(store, "instance-1") == [Wakeup(claim.id, 1)]
    assert await finish_one(store, ended(claim, ExecutionStatus.CANCELLED))
    assert await beat(store, "instance-1") == []
    assert await statuses(store, [other.id]) == {other.id: ExecutionStatus.RUNNING}


async def test_cancelling_what_is_over_changes_nothing(store: Store) -> None:
    id_ = await submitted(store)
    await finished(store, [id_])
    assert await store.transitions.cancel(id_, actor="ann") == "over"
    assert await statuses(store, [id_]) == {id_: ExecutionStatus.SUCCEEDED}


async def test_cancels_that_come_together_share_transactions_and_each_has_its_answer(store: Store) -> None:
    waiting = [await submitted(store) for _ in range(40)]
    claim, over = await running(store), await submitted(store)
    await finished(store, [over])
    await store.transitions.cancel(await submitted(store), actor="ann")
    async with noted(store) as sent:
        answers = await asyncio.gather(
            *(store.transitions.cancel(id_, actor=f"ann {n}", reason=str(n)) for n, id_ in enumerate(waiting)),
            *(store.transitions.cancel(id_, actor="bob") for id_ in (claim.id, over, waiting[0], UNKNOWN)),
            return_exceptions=True,
        )
    assert answers[:43] == ["cancelled"] * 40 + ["requested", "over", "cancelled"]
    assert isinstance(answers[43], ExecutionNotFoundError)
    assert len(sent) <= 2 * 7, "one transaction, or two"
    assert set((await statuses(store, waiting)).values()) == {ExecutionStatus.CANCELLED}
    [event] = await store.history.events(waiting[7])
    assert (event.actor, event.detail) == ("ann 7", {"reason": "7"})
    assert "Cancelled by ann 7 before it started: 7" in str((await store.history.get(waiting[7])).error)


@pytest.mark.parametrize("id_", [UNKNOWN, "nope", "", "'; DROP TABLE executions"])
async def test_cancelling_what_does_not_exist_says_so(store: Store, id_: str) -> None:
    with pytest.raises(ExecutionNotFoundError, match="No execution has the id"):
        await store.transitions.cancel(id_, actor="ann")


async def test_a_cancelled_retry_keeps_its_earlier_attempt(store: Store) -> None:
    claim = await running(store, max_attempts=3)
    assert await finish_one(store, ended(claim, ExecutionStatus.FAILED, retry_in=60.0))
    assert await store.transitions.cancel(claim.id, actor="ann") == "cancelled"
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
    assert await store.transitions.sweep() == [id_]
    [stored] = await store.queue.results([id_, alive])
    assert ((await store.history.get(id_)).status, stored.error_code) == (ExecutionStatus.EXPIRED, "EXPIRED")
    assert "queue 'nightly'" in str(stored.error)
    assert await store.transitions.sweep() == []


async def test_a_running_call_never_expires(store: Store) -> None:
    claim = await running(store)
    await overdue(store, claim.id)
    assert await store.transitions.sweep() == []
    assert await finish_one(store, ended(claim))


async def test_a_queued_call_whose_attempts_are_used_up_is_lost_once_it_expires(store: Store) -> None:
    id_ = await submitted(store)
    await forge(store, "UPDATE execution_queue SET attempt = max_attempts")
    assert await store.transitions.sweep() == []
    await overdue(store, id_)
    assert await store.transitions.sweep() == [id_]
    assert await statuses(store, [id_]) == {id_: ExecutionStatus.LOST}


async def test_a_sweep_takes_no_more_than_its_limit(store: Store) -> None:
    assert await store.queue.submit_many([call(expires_in=-1.0) for _ in range(5)]) == [None] * 5
    assert [len(await store.transitions.sweep(3)) for _ in range(3)] == [3, 2, 0]


async def test_recovery_queues_idempotent_calls_again_and_says_the_others_are_lost(store: Store) -> None:
    await store.workers.register(instance())
    again = await running(store, idempotent=True, max_attempts=3)
    lost = await running(store)
    assert await store.transitions.recover("instance-1", "silent for 15 s") == ([again.id], [lost.id])
    assert (await claimed(store, again.id, attempt=1)).attempt == 2
    [stored] = await store.queue.results([lost.id])
    assert ((await store.history.get(lost.id)).status, stored.error_code) == (ExecutionStatus.LOST, "LOST")
    assert "unknown" in str(stored.error)
    [attempt] = await store.history.attempts(again.id)
    assert (attempt.status, attempt.worker_id, attempt.hostname, attempt.pid) == (
        ExecutionStatus.LOST, "instance-1", "host-1", 11
    )  # fmt: skip
    assert attempt.started_at is not None
    assert [event.kind for event in await store.history.events(again.id)] == ["requeue"]
    assert [event.kind for event in await store.history.events(lost.id)] == ["lost"]


async def test_recovery_leaves_other_instances_and_repeats_harmlessly(store: Store) -> None:
    mine = await running(store)
    theirs = await running(store, by=scope(instance="instance-2"))
    assert await store.transitions.recover("instance-1", "dead") == ([], [mine.id])
    assert await store.transitions.recover("instance-1", "dead") == ([], [])
    assert await finish_one(store, ended(theirs))


async def test_an_idempotent_call_without_attempts_left_is_lost(store: Store) -> None:
    claim = await running(store, idempotent=True, max_attempts=1)
    assert await store.transitions.recover("instance-1", "dead") == ([], [claim.id])


async def test_a_call_that_is_not_idempotent_never_runs_again_whatever_attempts_are_left(store: Store) -> None:
    claim = await running(store, idempotent=False, max_attempts=3)
    assert await store.transitions.recover("instance-1", "dead") == ([], [claim.id])
    assert await store.queue.claim([Wakeup(claim.id, 1)], SCOPE) == []


async def test_recovery_gives_a_long_running_call_its_waiting_time_again(store: Store) -> None:
    claim = await running(store, idempotent=True, max_attempts=2)
    await overdue(store, claim.id)
    assert await store.transitions.recover("instance-1", "dead") == ([claim.id], [])
    assert await store.transitions.sweep() == []
    assert (await claimed(store, claim.id, attempt=1)).attempt == 2


async def test_the_finish_of_a_recovered_attempt_is_late(store: Store) -> None:
    requeued = await running(store, idempotent=True, max_attempts=3)
    lost = await running(store)
    await store.transitions.recover("instance-1", "dead")
    assert await store.queue.finish_many([ended(requeued), ended(lost)]) == [False, False]
    assert not await finish_one(store, ended(lost, ExecutionStatus.LOST))
    assert await statuses(store, [requeued.id, lost.id]) == {
        requeued.id: ExecutionStatus.QUEUED,
        lost.id: ExecutionStatus.LOST,
    }
    assert [event.kind for event in await store.history.events(requeued.id)] == ["requeue", "late"]


async def test_a_recovered_call_whose_cancel_was_asked_ends_as_cancelled(store: Store) -> None:
    claim = await running(store, idempotent=True, max_attempts=3)
    await store.transitions.cancel(claim.id, actor="ann")
    await store.transitions.recover("instance-1", "dead")
    assert await store.queue.claim([Wakeup(claim.id, 1)], SCOPE) == []
    assert await store.transitions.sweep() == [claim.id]
    assert await statuses(store, [claim.id]) == {claim.id: ExecutionStatus.CANCELLED}
    assert [attempt.status for attempt in await store.history.attempts(claim.id)] == [
        ExecutionStatus.LOST,
        ExecutionStatus.CANCELLED,
    ]


async def test_a_lost_call_says_what_is_known_and_what_to_do(store: Store) -> None:
    await store.workers.register(instance())
    claim = await running(store, max_attempts=2)
    await store.transitions.recover("instance-1", "silent for 15 s")
    error = (await store.history.get(claim.id)).error or ""
    started = datetime.fromtimestamp(claim.started_at or 0, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    assert error.startswith("Worker instance-1 on host-1 (process 11) died (its last heartbeat was at 20")
    assert f"while the tool ran (started {started}, attempt 1 of 2)" in error
    assert "unknown. The tool is not idempotent, so it is not run again: check its effects before" in error


async def test_a_call_that_ended_its_workers_is_lost_after_its_attempts_and_listed(store: Store) -> None:
    poison = await submitted(store, idempotent=True, max_attempts=3)
    for attempt in range(3):
        await claimed(store, poison, attempt)
        await store.transitions.recover("instance-1", "dead")
    [record] = await store.history.list(status=ExecutionStatus.LOST)
    assert (record.id, record.attempt, record.error_code) == (poison, 3, "LOST")
    assert "(dead)" in (record.error or "")
    assert "All 3 attempts are used up: find out what ends the process" in (record.error or "")
    assert [attempt.status for attempt in await store.history.attempts(poison)] == [ExecutionStatus.LOST] * 3


async def test_what_was_present_at_the_first_death_of_an_async_worker_stays_in_its_lane(store: Store) -> None:
    await host(store, "instance-2", lane="process", version="1.0.0")
    claim = await running(store, idempotent=True, max_attempts=3)
    await dies(store, "instance-1")
    assert (await claimed(store, claim.id, 1, by=scope(instance="instance-3"))).attempt == 2


async def test_what_was_present_at_two_deaths_is_retried_alone_and_its_new_neighbours_are_not(store: Store) -> None:
    await host(store, "instance-2", lane="process", version="1.4.0")
    moved = await running(store, idempotent=True, max_attempts=3)
    await dies(store, "instance-1")
    await claimed(store, moved.id, 1, by=scope(instance="instance-3"))
    stays = await running(store, by=scope(instance="instance-3"), idempotent=True, max_attempts=3)
    await dies(store, "instance-3")
    assert [wakeup.id for wakeup in await store.queue.due(SCOPE, 10)] == [stays.id]
    assert (await claimed(store, moved.id, 2, by=scope(instance="instance-2", lane="process"))).attempt == 3
    assert [event.detail.get("lane") for event in await store.history.events(moved.id)] == [
        None, "process, to run alone"
    ]  # fmt: skip


@pytest.mark.parametrize("neighbour", [{"hostname": "host-2"}, {"silent": 19.0}])
async def test_a_host_that_vanished_makes_nobody_a_suspect(store: Store, neighbour: dict[str, Any]) -> None:
    await host(store, "instance-2", lane="process", version="1.0.0", hostname="host-2")
    await host(store, "instance-4", version="1.0.0", **neighbour)
    assert (await twice_orphaned(store)).attempt == 3


async def test_a_worker_that_only_froze_makes_nobody_a_suspect(store: Store) -> None:
    await host(store, "instance-2", lane="process", version="1.0.0")
    claim = await running(store, idempotent=True, max_attempts=3)
    await dies(store, "instance-1")
    await beat(store, "instance-1")
    await claimed(store, claim.id, 1, by=scope(instance="instance-3"))
    await dies(store, "instance-3")
    assert (await claimed(store, claim.id, 2)).attempt == 3


@pytest.mark.parametrize("other", [{"queues": ("background",)}, {"tool": "Read"}, {"version": "2.0.0"}])
async def test_a_suspect_that_nobody_serves_in_the_process_lane_stays_where_it_is(
    store: Store, other: dict[str, Any]
) -> None:
    await host(store, "instance-2", **{"lane": "process", "version": "1.0.0"} | other)
    claim = await twice_orphaned(store)
    assert all("lane" not in event.detail for event in await store.history.events(claim.id))


async def twice_orphaned(store: Store) -> Claim:
    """A call whose two workers died, claimed a third time in the async lane."""
    claim = await running(store, idempotent=True, max_attempts=3)
    await dies(store, "instance-1")
    await claimed(store, claim.id, 1, by=scope(instance="instance-3"))
    await dies(store, "instance-3")
    return await claimed(store, claim.id, 2)


async def dies(store: Store, name: str) -> None:
    """That worker has been silent for a while, which ends what it ran."""
    await host(store, name, version="1.0.0", silent=20.0)
    await store.transitions.recover(name, "dead")


async def test_a_call_that_awaits_approval_is_cancelled_at_once(store: Store) -> None:
    id_ = await awaiting(store)
    assert await store.queue.claim([Wakeup(id_, 0)], SCOPE) == []
    assert await store.transitions.sweep() == []
    assert await store.transitions.cancel(id_, actor="ann") == "cancelled"
    [stored] = await store.queue.results([id_])
    assert ((await store.history.get(id_)).status, stored.error) == (
        ExecutionStatus.CANCELLED, "Cancelled by ann before anybody approved it."
    )  # fmt: skip


async def test_an_approval_that_nobody_gives_in_time_is_a_rejection(store: Store) -> None:
    id_ = await awaiting(store)
    await overdue(store, id_)
    assert await store.transitions.sweep() == [id_]
    [stored] = await store.queue.results([id_])
    assert ((await store.history.get(id_)).status, stored.error_code) == (ExecutionStatus.REJECTED, "EXPIRED")
    assert "Nobody approved it" in str(stored.error)


async def test_a_cancel_and_a_finish_of_one_moment_have_one_winner_and_say_so(store: Store) -> None:
    claims = [await running(store) for _ in range(20)]
    work = [step for claim in claims for step in (finish_one(store, ended(claim)), ask(store, claim.id))]
    answers = await asyncio.gather(*work)
    assert all(answers[::2])
    assert {*answers[1::2]} <= {"requested", "over"}
    assert await statuses(store, [claim.id for claim in claims]) == {
        claim.id: ExecutionStatus.SUCCEEDED for claim in claims
    }
    assert [await ask(store, claim.id) for claim in claims] == ["over"] * 20


async def test_a_cancel_and_a_claim_of_one_moment_have_one_winner(store: Store) -> None:
    ids = [await submitted(store) for _ in range(20)]
    claiming = asyncio.gather(*(store.queue.claim([Wakeup(id_, 0)], SCOPE) for id_ in ids))
    answers = await asyncio.gather(*(ask(store, id_) for id_ in ids))
    claims = {claim.id for won in await claiming for claim in won}
    assert {id_ for id_, answer in zip(ids, answers, strict=True) if answer == "requested"} == claims
    assert len(await store.queue.results(ids)) == 20 - len(claims)


async def test_who_has_to_hear_of_a_cancel_is_the_worker_while_a_call_runs_and_else_its_submitter(store: Store) -> None:
    notified, silent = await submitted(store, reply_to="client-1"), await submitted(store)
    claim = await running(store)
    found = await store.transitions.listeners([notified, silent, claim.id, UNKNOWN, "nope"])
    assert sorted(found) == sorted([("client-1", notified), ("instance-1", claim.id)])
    assert await store.transitions.listeners([]) == []


async def test_a_worker_reads_which_of_its_running_calls_are_to_be_cancelled(store: Store) -> None:
    claim, _ = await running(store), await running(store)
    assert await store.transitions.cancels("instance-1") == []
    assert await ask(store, claim.id) == "requested"
    assert await store.transitions.cancels("instance-1") == [Wakeup(claim.id, 1)]
    assert await store.transitions.cancels("instance-2") == []
    assert await finish_one(store, ended(claim, ExecutionStatus.CANCELLED))
    assert await store.transitions.cancels("instance-1") == []


async def test_due_work_comes_oldest_first_and_within_the_limit(store: Store) -> None:
    ids = [await submitted(store) for _ in range(4)]
    assert await store.queue.due(SCOPE, 3) == [Wakeup(id_, 0) for id_ in sorted(ids[:3])]


async def ask(store: Store, id_: str) -> str:
    return await store.transitions.cancel(id_, actor="ann")


async def awaiting(store: Store) -> str:
    """A call that a policy has stopped before its body started."""
    id_ = await submitted(store)
    stopped = update(execution_queue).where(execution_queue.c.id == id_).values(status="awaiting_approval")
    await store.database.write(lambda connection: connection.execute(stopped))
    return id_


async def host(store: Store, name: str, *, version: str, tool: str = "Grep", silent: float = 0.0, **facts: Any) -> None:
    """Another worker that lives, or was heard of `silent` seconds ago, and hosts that tool."""
    await store.workers.register(instance(name, **facts))
    hosted = {"tools": {tool: f"{version} d1"}, "last_seen_at": from_now(-silent)}
    row = update(workers).where(workers.c.id == name).values(hosted)
    await store.database.write(lambda connection: connection.execute(row))


async def test_an_instance_that_has_beaten_since_its_judge_looked_is_left_alone(store: Store) -> None:
    await store.workers.register(instance())
    claim = await running(store)
    seen = (await store.workers.beats())["instance-1"]
    await beat(store, "instance-1")

    assert await store.transitions.recover("instance-1", "silent", seen) == ([], [])
    assert await statuses(store, [claim.id]) == {claim.id: ExecutionStatus.RUNNING}
    assert await store.transitions.recover("instance-1", "silent", seen + 1) == ([], [claim.id])


async def test_an_owner_that_never_had_a_row_is_judged_by_that(store: Store) -> None:
    claim = await running(store)
    assert await store.transitions.recover("instance-1", "silent", 0) == ([], [])
    assert await store.transitions.recover("instance-1", "silent", (await store.workers.beats())["instance-1"]) == (
        [],
        [claim.id],
    )
