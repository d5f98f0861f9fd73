"""Many hands on the same rows: one winner each, nothing lost, nothing done twice."""

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack

from forge_tools.model import ExecutionStatus
from forge_tools.model.execution import Wakeup
from forge_tools.storage import Store, open_store
from tests.contract.calls import beat, call, ended, instance, running, scope, statuses, submitted
from tests.fleet import ROOT, warm_worker

POOLED = True


async def test_twenty_claimers_have_one_winner(store: Store, migrated_url: str) -> None:
    id_ = await submitted(store)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(await open_store(migrated_url, patience=30)) for _ in range(4)]
        scopes = [scope(instance=f"instance-{n}") for n in range(20)]
        asked = (stores[n % 4].queue.claim([Wakeup(id_, 0)], one) for n, one in enumerate(scopes))
        won = [claims for claims in await asyncio.gather(*asked) if claims]
    assert [claim.attempt for [claim] in won] == [1]


async def test_two_stores_that_claim_the_same_two_hundred_share_them(store: Store, migrated_url: str) -> None:
    calls = [call() for _ in range(200)]
    assert await store.queue.submit_many(calls) == [None] * 200
    wakeups = [Wakeup(new.id, 0) for new in calls]
    async with await open_store(migrated_url) as other:
        mine, theirs = await asyncio.gather(
            store.queue.claim(wakeups, scope()), other.queue.claim(wakeups[::-1], scope(instance="instance-2"))
        )
    assert sorted(claim.id for claim in mine + theirs) == sorted(new.id for new in calls)


async def test_a_finish_and_a_recovery_at_once_have_one_winner(store: Store, migrated_url: str) -> None:
    claims = [await running(store, idempotent=True, max_attempts=2) for _ in range(20)]
    async with await open_store(migrated_url) as other:
        effects, (again, lost) = await asyncio.gather(
            store.queue.finish_many([ended(claim) for claim in claims]),
            other.transitions.recover("instance-1", "silent"),
        )
    assert lost == []
    assert sorted(again) == sorted(claim.id for claim, kept in zip(claims, effects, strict=True) if not kept)
    counted = Counter((await statuses(store, [claim.id for claim in claims])).values())
    assert counted[ExecutionStatus.SUCCEEDED] == sum(effects)
    assert counted[ExecutionStatus.QUEUED] == len(again)


async def test_a_finish_and_a_cancel_at_once_leave_one_end(store: Store) -> None:
    claims = [await running(store) for _ in range(20)]
    outcomes = await asyncio.gather(
        store.queue.finish_many([ended(claim) for claim in claims]),
        *(store.transitions.cancel(claim.id, actor="ann") for claim in claims),
    )
    assert outcomes[0] == [True] * 20
    assert set(outcomes[1:]) <= {"over", "requested"}
    assert len(await store.queue.results([claim.id for claim in claims])) == 20


async def test_four_processes_lose_no_update_and_run_nothing_twice(store: Store, migrated_url: str) -> None:
    await store.workers.register(instance("shared"))
    calls = [call() for _ in range(200)]
    assert await store.queue.submit_many(calls) == [None] * 200
    words = [["tests.contract.claimant", migrated_url, f"instance-{n}"] for n in range(4)]
    processes = await asyncio.gather(
        *(asyncio.to_thread(warm_worker().run, each, cwd=ROOT, env=os.environ) for each in words)
    )
    assert [process.returncode for process in processes] == [0] * 4, processes
    assert sum(int(process.stdout) for process in processes) == 200
    results = await store.queue.results([new.id for new in calls])
    ran = Counter(stored.output for stored in results)
    assert {name: count for name, count in ran.items() if count} == {
        f"instance-{n}": int(process.stdout) for n, process in enumerate(processes) if int(process.stdout)
    }


async def test_beats_from_four_stores_are_all_counted(store: Store, migrated_url: str) -> None:
    await store.workers.register(instance("shared"))

    async def beat_often(count: int) -> None:
        async with await open_store(migrated_url, patience=60) as own:
            for _ in range(count):
                await beat(own, "shared")

    await asyncio.gather(*(beat_often(25) for _ in range(4)))
    assert await store.workers.beats() == {"shared": 100}
